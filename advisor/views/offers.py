"""What each card and number of cards would take: the best in words, and the table of all that fit."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st
from msgspec import Struct
from msgspec.structs import replace

from advisor import cards, knowledge
from advisor.evidence import Evidence
from advisor.planner.before import Offer, Range
from advisor.render import words
from advisor.share import link
from advisor.speed import step_time
from advisor.units import gib, show
from advisor.views.words import BROKEN_LINES, plain

SAMPLES_KEPT = "a step keeps its samples"  # as the planner says it
_UNITS = (("hours", 1.0), ("minutes", 60.0), ("seconds", 3600.0))


class Wishes(Struct, frozen=True):
    """What the reader could get and spend; ``None``: no limit."""

    cards: tuple[str, ...]
    hours: float | None = None
    budget: float | None = None

    def over(self, offer: Offer) -> str:
        """Which wish an offer may not keep, by the high end of its range; a figure that is not known keeps none."""
        if self.hours is not None and (offer.hours is None or offer.hours.high > self.hours):
            return "may take too long" if offer.hours else "its time is not known"
        if self.budget is not None and (offer.cost is None or offer.cost.high > self.budget):
            return "may be over the budget" if offer.cost else "its cost is not known"
        return ""

    def judged(self, found: Sequence[Offer]) -> tuple[Wishes, list[str]]:
        """The wishes that any of the offers can be held against, and a sentence for each that none can."""
        kept, said = self, []
        if self.budget is not None and found and not any(o.cost for o in found):
            kept = replace(kept, budget=None)
            need = (
                "the tokens of the run are not known" if not any(o.hours for o in found) else "none of these cards has a price: give the price of a card-hour"
            )
            said.append(f"The budget of {self.budget:,g} is not judged, because {need}.")
        if self.hours is not None and found and not any(o.hours for o in found):
            kept = replace(kept, hours=None)
            said.append(f"The limit of {self.hours:,g} hours is not judged, because the time is not known: give the tokens of the run.")
        return kept, said


def span(values: Range | None) -> str:
    """``12 (9 to 16)``."""
    if values is None:
        return "not known"
    low, expected, high = (f"{v:,.0f}" if v >= 100 else f"{v:,.1f}" if v >= 1 else f"{v:.2f}" for v in (values.low, values.expected, values.high))
    return f"{expected} ({low} to {high})"


def taking(hours: Range | None) -> str:
    """``2.6 (1.8 to 3.7) hours``; minutes or seconds where it takes less than one."""
    if hours is None:
        return "a time that is not known"
    unit, scale = next((u for u in _UNITS if hours.expected * u[1] >= 1), _UNITS[-1])
    return f"{span(hours.times(scale))} {unit}"


def changed(offer: Offer) -> str:
    """What was changed so that it fits, and how the batch was cut to the cards."""
    made = ", ".join(words.title("techniques", name) for name in offer.changes) or "As written"
    return f"{made}; {offer.batch}" if offer.batch else made


def _briefly(offer: Offer) -> str:
    """The same in a cell: a technique by its name, without the words that explain it, and the batch once."""
    batch = (offer.batch or "").removesuffix(f", {SAMPLES_KEPT}")
    made = [words.title("techniques", name).split(":")[0] for name in offer.changes if name != "smaller-micro-batch" or not batch.startswith("micro batch")]
    return "; ".join(filter(None, (", ".join(made) or ("" if batch.startswith("micro batch") else "As written"), batch)))


def ranked(offers: Sequence[Offer]) -> list[Offer]:
    """Those that fit, the surest first; among them in the order in which they come: what keeps to the limits, then the cheapest."""
    return sorted((o for o in offers if o.verdict != "ooms"), key=lambda o: o.verdict != "fits")


def show_answer(found: Sequence[Offer], wishes: Wishes) -> None:
    """The cheapest that fits and keeps to the wishes, in words."""
    judged, unjudged = wishes.judged(found)
    best = next((o for o in found if not judged.over(o)), None)
    for sentence in unjudged:
        st.warning(sentence, title="A limit is not used yet", icon=":material/help:")
    if not found:
        says = "None of these cards holds it, up to eight of them in one node. Train fewer parameters, take a larger card, or look in Explore for a layout."
        st.info(says, title="Does not fit", icon=":material/error:")
    elif best is None:
        st.warning("It fits on these cards, and none keeps to the time or budget given.", title="Over the limits", icon=":material/warning:")
    else:
        _best(best, priced=all(o.cost for o in found), sure=not unjudged)


def show_all(found: Sequence[Offer], wishes: Wishes) -> None:
    """All that fit, in a table, and how it was worked out."""
    if found:
        _table(found, wishes)
    _worked_out(found)


def _best(best: Offer, *, priced: bool, sure: bool) -> None:
    """The choice; what could not be held against every limit is no success yet."""
    why = (
        f"the lowest cost{'' if priced else ' where a price is given'}"
        if best.cost
        else "the fewest card-hours"
        if best.hours
        else "the smallest that holds it"
    )
    cost = f", {span(best.cost)} for it" if best.cost else ""
    lines = [f"{best.cards} × {plain(cards.catalogue()[best.card].name)}, {taking(best.hours)}{cost}: {why}, of what fits."]
    lines.append(f"{show(best.used_bytes)} needed of {show(best.usable_bytes)} usable on each. {plain(changed(best))}.")
    lines.append(
        f"The node needs {show(best.storage.host_bytes)} of host memory while loading; a checkpoint takes {show(best.storage.checkpoint_bytes)} on disk, "
        f"the weights alone {show(best.storage.weights_bytes)}."
    )
    title = "This would do" if best.verdict == "fits" else "This is expected to fit, without margin"
    if sure:
        st.success("\n\n".join(lines), title=title, icon=":material/check_circle:")
    else:
        st.info("\n\n".join(lines), title="Of what fits, and whatever it costs or takes", icon=":material/memory:")
    st.page_link(
        knowledge.folder("pages") / "explore.py",
        label="Open this choice in Explore",
        icon=":material/tune:",
        query_params=link(best.run.job, Evidence()).parameters or None,
    )


def _table(found: Sequence[Offer], wishes: Wishes) -> None:
    st.header("What fits, and what it takes")
    rows = [
        {
            "Card": cards.catalogue()[o.card].name,
            "Cards": o.cards,
            "Time": "not known" if o.hours is None else taking(o.hours),
            "Card-hours": None if o.hours is None else float(f"{o.hours.expected * o.cards:.2g}"),
            **({"Cost": span(o.cost)} if any(o.cost for o in found) else {}),
            "Verdict": words.VERDICTS[o.verdict] + (f", {over}" if (over := wishes.over(o)) else ""),
            "Needs": gib(o.used_bytes, 1),
            "Usable": gib(o.usable_bytes, 1),
            "How": _briefly(o),
            "Micro batch": o.run.job.batch.micro_batch,
            "Host memory": gib(o.storage.host_bytes, 1),
        }
        for o in found
    ]
    st.dataframe(
        rows,
        column_config={
            "Card": st.column_config.TextColumn(width=104),
            "Cards": st.column_config.NumberColumn(width=48),
            "Time": st.column_config.TextColumn(width=108, help="Of the whole run, expected, with the range in brackets."),
            "Card-hours": st.column_config.NumberColumn(width=82, format="%g", help="Hours times cards: what is paid for."),
            "Cost": st.column_config.TextColumn(width=80, help="In the currency of the prices, with its range."),
            "Verdict": st.column_config.TextColumn(width=72),
            "Needs": st.column_config.NumberColumn(width=78, format="%.1f GiB", help="Tensors and the CUDA context on each card."),
            "Usable": st.column_config.NumberColumn(width=78, format="%.1f GiB", help="What a process can use of each card."),
            "How": st.column_config.TextColumn(width=170, help="What was changed so that it fits; the lightest change that does."),
            "Micro batch": st.column_config.NumberColumn("Micro", width=56, help="Micro batch: samples that one card works on at once."),
            "Host memory": st.column_config.NumberColumn("Host", width=74, format="%.1f GiB", help="Host memory of the node, while all ranks load."),
        },
        hide_index=True,
        row_height=BROKEN_LINES,
        height=min(BROKEN_LINES * len(found) + 40, 640),
        alt="Cards and counts on which the run fits, the cheapest first, with hours and what it needs.",
    )
    left = [cards.catalogue()[id].name for id in wishes.cards if id not in {o.card for o in found}]
    if left:
        st.caption(f"Not even eight of these hold it: {', '.join(plain(n) for n in left)}.")


def _worked_out(found: Sequence[Offer]) -> None:
    with st.expander("How this is worked out", icon=":material/function:"):
        st.markdown(
            "Memory: the same estimate as everywhere; on each card the lightest form that fits is taken, as written, divided, checkpointed, then with a "
            "smaller micro batch, and the samples of a step stay the same. Time: arithmetic at the card's rate, bytes at its bandwidth, and exchanges "
            "between cards, for all the tokens, on one node. Loading, evaluation, saving, restarts and waiting for cards are not in it."
        )
        for note in sorted({note for o in found for note in step_time(o.run).notes}):
            st.caption(plain(f"{note[:1].upper()}{note[1:]}."))
