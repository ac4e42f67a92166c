"""What each technique would do to a run, alone: memory, computing, communication, results. What cannot be used says why."""

from __future__ import annotations

import streamlit as st
from msgspec import Struct

from advisor.arithmetic import CannotEstimate, estimate
from advisor.evidence import Evidence
from advisor.job import JobError
from advisor.render import words
from advisor.run import Run
from advisor.share import link
from advisor.speed import StepTime, step_time
from advisor.techniques import NotApplicable, all_techniques
from advisor.units import MIB, gib
from advisor.verdict import judge, needed
from advisor.views.words import BROKEN_LINES, plain, table

LEAST = 16 * MIB  # a smaller difference is rounding
VERDICTS = {"fits": "✓ fits", "tight": "~ tight", "ooms": "✗ does not fit", "incomplete": "? not known"}


class Effect(Struct, frozen=True):
    """One technique on this run. Times are shares of the present step, for the same number of tokens; ``None``: not known."""

    id: str
    saves_bytes: int
    need_bytes: int
    verdict: str
    computing: float | None
    communication: float | None
    results: str


def effects(run: Run) -> tuple[list[Effect], list[tuple[str, str]]]:
    """``(what can be used, what cannot and why)``; what takes most off comes first. What would change nothing is in neither."""
    before, first = needed(estimate(run)).expected, step_time(run)
    found, refused = [], []
    for id, technique in all_techniques().items():
        if not technique.estimated:
            continue
        try:
            changed = technique.apply(run)
            if isinstance(changed, NotApplicable):
                refused.append((id, changed.reason))
                continue
            ledger = estimate(changed)
        except (JobError, CannotEstimate) as error:
            refused.append((id, str(error)))
            continue
        flags, after, then = technique.judged(run, changed), needed(ledger).expected, step_time(changed)
        computing, communication = _shares(first, then)
        if abs(before - after) < LEAST and not computing and not communication:
            continue
        results = "what is learned may change" if flags.alters_learning else "same up to rounding" if flags.exact else "change slightly"
        found.append(Effect(id, before - after, after, judge(changed, ledger)[0], computing, communication, results))
    return sorted(found, key=lambda e: -e.saves_bytes), sorted(refused)


def _shares(before: StepTime, after: StepTime) -> tuple[float | None, float | None]:
    """What computing and communication of one token grow by, as shares of the present time of a token."""
    if not before.seconds_per_token or not after.seconds_per_token:
        return None, None
    whole = after.seconds_per_token / before.seconds_per_token - 1
    links = (after.communication / after.tokens - before.communication / before.tokens) / before.seconds_per_token
    return round(whole - links, 4), round(links, 4)


@st.cache_data(show_spinner="Estimating each technique", max_entries=32)
def _effects(settings: str, _run: Run) -> tuple[list[Effect], list[tuple[str, str]]]:
    """The effects on a job, kept by its link."""
    del settings  # the key; a Run holds caches of its own and is not hashed
    return effects(_run)


def show_techniques(run: Run) -> None:
    """The table, and what cannot be used, folded away."""
    found, refused = _effects(link(run.stated, Evidence()).query, run)
    if not found:
        st.markdown("No technique of the library changes this run.")
        return
    st.markdown("Each change alone, with everything else as it is. Several together do not add up: tick them in Diagnose.")
    rows = [
        {
            "Saves": gib(e.saves_bytes, 1),
            "Change": words.title("techniques", e.id),
            "Needs then": gib(e.need_bytes, 1),
            "Verdict": VERDICTS.get(e.verdict, e.verdict),
            "Computing": None if e.computing is None else round(100 * e.computing) + 0,
            "Communication": None if e.communication is None else round(100 * e.communication) + 0,
            "Results": e.results,
            "Read": f"library?kind=techniques&page={e.id}",
        }
        for e in found
    ]
    st.dataframe(
        rows,
        column_config={
            "Saves": st.column_config.NumberColumn(width=72, format="%.1f GiB", help="Estimated, on the fullest card. A minus: it takes more memory."),
            "Change": st.column_config.TextColumn(width=220),
            "Needs then": st.column_config.NumberColumn(width=86, format="%.1f GiB", help="Tensors and the CUDA context, estimated."),
            "Verdict": st.column_config.TextColumn(width=104),
            "Computing": st.column_config.NumberColumn(
                width=84, format="%+d%%", help="Arithmetic, memory traffic and the host: change in the time of a token."
            ),
            "Communication": st.column_config.NumberColumn(
                width=112, format="%+d%%", help="Exchange between cards that nothing hides: change in the time of a token."
            ),
            "Results": st.column_config.TextColumn(width=128, help="Whether the run computes the same numbers."),
            "Read": st.column_config.LinkColumn(width=56, display_text="page", help="How it works, what can go wrong, and where it was read."),
        },
        hide_index=True,
        row_height=BROKEN_LINES,
        height=520,
        alt="Techniques that change this run, the largest saving first, with what each costs in computing and communication.",
    )
    if refused:
        with st.expander(f"Cannot be used here ({len(refused)})", icon=":material/block:"):
            st.markdown(table(("Change", "Why not"), [(plain(words.title("techniques", id)), plain(why)) for id, why in refused]))
