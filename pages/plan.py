"""Plan: before the run. Model, tokens, method and budget in; cards, hours and cost out, each with its range."""

import streamlit as st

from advisor import cards, knowledge
from advisor.architecture.presets import names
from advisor.evidence import Evidence
from advisor.job import JobError, read_job
from advisor.render import words
from advisor.share import link, open_link
from advisor.speed import step_time
from advisor.stating import StatingError, put, validated
from advisor.units import gib, show
from advisor.views.address import arrived, write
from advisor.views.before_run import Option, options
from advisor.views.field_widget import ask
from advisor.views.words import plain

HELD = st.session_state  # planned: the job; plan-cards, plan-hours, plan-budget, plan-price:CARD: the wishes
FIRST = read_job(
    {
        "version": 1,
        "model": {"name": "meta-llama/Llama-3.1-8B"},
        "method": {"kind": "full"},
        "objective": "sft",
        "precision": {"weights": "bf16", "compute": "bf16"},
        "optimizer": {"name": "adamw"},
        "batch": {"seq_len": 4096, "total_tokens": 100_000_000},
        "activations": {"checkpointing": "full", "attention": "flash-2"},
    }
)
CARDS = ("rtx4090-24gb", "l40s-48gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb", "mi300x-192gb")
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def take(path: str, key: str) -> None:
    """Set a field of the job; what does not go together is said, and the job stays."""
    if HELD[key] in (None, ""):
        return
    try:
        HELD.planned = put(HELD.planned, path, validated(path, HELD[key]))
    except (JobError, StatingError) as error:
        HELD["plan-refused"] = str(error)


def wishes_of(parameters: dict[str, str]) -> dict[str, str]:
    """Take the wishes out of a link's parameters; what remains is a job."""
    known = cards.catalogue()
    chosen = [c for c in parameters.pop("cards", "").split(",") if c in known]
    HELD["plan-cards"] = chosen or [c for c in CARDS if c in known]
    for name in [n for n in parameters if n in ("hours", "budget") or n.startswith("price.")]:
        try:
            number = float(parameters.pop(name))
        except ValueError:
            continue
        if 0 < number < 1e9:
            HELD[f"plan-{name}"] = number
    return parameters


here = arrived("plan")
if here:
    opened = open_link(wishes_of(dict(here)))
    HELD.planned, HELD.planned_lost = opened.job, opened.dropped
elif here is not None or "planned" not in HELD:
    HELD.planned, HELD.planned_lost = FIRST, ()
    wishes_of({})

st.title("Plan")
st.markdown("Before the run: which cards hold it, how long it takes, and what that costs. Every figure is estimated, with its range.")
if refused := HELD.pop("plan-refused", None):
    st.warning(plain(refused), icon=":material/info:")
for text in HELD.get("planned_lost", ()):
    st.warning(f"The link held something that could not be used: {plain(text)}", icon=":material/link_off:")

job = HELD.planned
controls, result = st.columns([1, 3], gap="large")
with controls:

    def field(path: str, choices: tuple | None = None) -> None:
        ask(path, job.get(path), f"plan:{path}", take, options=choices)

    field("model.name", tuple(sorted({*names(), job.model.name or ""} - {""})))
    field("method.kind")
    if job.method.kind in ("lora", "dora"):
        field("method.base")
        field("method.rank", (4, 8, 16, 32, 64, 128, 256))
    field("batch.total_tokens")
    field("batch.seq_len", TOKENS)
    field("activations.checkpointing")
    field("optimizer.name")
    field("precision.weights")

    catalogue = cards.catalogue()
    HELD["plan-cards"] = [c for c in HELD.get("plan-cards", CARDS) if c in catalogue]
    chosen = st.multiselect("Cards that you could get", list(catalogue), format_func=lambda c: catalogue[c].name, key="plan-cards")
    hours = st.number_input("Must be done within (hours)", min_value=0.1, value=None, key="plan-hours", placeholder="no limit", persist_state="session")
    budget = st.number_input(
        "Budget", min_value=0.01, value=None, key="plan-budget", placeholder="no limit", persist_state="session", help="In the currency of the prices."
    )
    prices = {}
    with st.expander("Price of a card-hour", icon=":material/payments:"):
        st.caption("Prices change and differ between providers, so none is built in: give yours.")
        for id in chosen:
            price = st.number_input(catalogue[id].name, min_value=0.0001, value=None, key=f"plan-price.{id}", placeholder="not known", persist_state="session")
            if price:
                prices[id] = price


def span(values: tuple[float, float, float] | None) -> str:
    """``12 (9 to 16)``."""
    if values is None:
        return "not known"
    low, expected, high = (f"{v:,.0f}" if v >= 100 else f"{v:,.1f}" if v >= 1 else f"{v:.2f}" for v in values)
    return f"{expected} ({low} to {high})"


def over(option: Option) -> str:
    """Which wish it does not keep, by the expected figure."""
    if hours and option.hours and option.hours[1] > hours:
        return "takes too long"
    if budget and option.cost and option.cost[1] > budget:
        return "over the budget"
    return ""


wishes = {"cards": ",".join(chosen)} if tuple(chosen) != CARDS else {}
wishes |= {name: f"{value:g}" for name, value in (("hours", hours), ("budget", budget)) if value}
wishes |= {f"price.{id}": f"{price:g}" for id, price in prices.items()}
shared = link(job, Evidence()).parameters if job != FIRST or wishes else {}
write("plan", {**shared, **wishes} if shared else {})

with result:
    if not chosen:
        st.markdown("Choose at least one card.")
        st.stop()
    found = options(job, chosen, prices)
    within = [o for o in found if not over(o)]
    if not found:
        missing = "" if job.get("model.name") else " The model is not known."
        st.info(
            f"None of these cards holds it, up to 64 of them.{missing} Try fewer trained parameters, or a larger card.",
            title="Does not fit",
            icon=":material/error:",
        )
        st.stop()
    if within:
        best = within[0]
        why = "the lowest cost" if best.cost else "the fewest card-hours" if best.hours else "the smallest that holds it"
        st.success(
            f"{best.count} x {plain(best.card.name)}: {span(best.hours)} hours"
            + (f", {span(best.cost)} for it" if best.cost else "")
            + f". {show(best.need_bytes)} needed of {show(best.usable_bytes)} usable on each, with {best.micro_batch} sequences at a time: {why} of what fits.",
            title="This would do" if best.verdict == "fits" else "This is expected to fit, without margin",
            icon=":material/check_circle:",
        )
        st.page_link(
            knowledge.folder("pages") / "explore.py",
            label="Open this choice in Explore",
            icon=":material/tune:",
            query_params=link(best.run.stated, Evidence()).parameters or None,
        )
    else:
        st.warning("It fits on these cards, and none keeps to the time or budget given.", title="Over the limits", icon=":material/warning:")
    st.header("What fits, and what it takes")
    st.dataframe(
        [
            {
                "Card": o.card.name,
                "Cards": o.count,
                "Hours": span(o.hours),
                "Card-hours": None if o.hours is None else round(o.card_hours, 1),
                "Cost": span(o.cost) if o.cost else "price not known",
                "Needs": gib(o.need_bytes, 1),
                "Usable": gib(o.usable_bytes, 1),
                "Sequences at a time": o.micro_batch,
                "Verdict": words.VERDICTS[o.verdict] + (f", {over(o)}" if over(o) else ""),
            }
            for o in found
        ],
        column_config={
            "Hours": st.column_config.TextColumn(help="Of the whole run, expected, with the range in brackets."),
            "Card-hours": st.column_config.NumberColumn(format="%.1f", help="Hours times cards: what is paid for."),
            "Needs": st.column_config.NumberColumn(format="%.1f GiB", help="Tensors and the CUDA context on each card."),
            "Usable": st.column_config.NumberColumn(format="%.1f GiB"),
            "Sequences at a time": st.column_config.NumberColumn(help="Micro batch: the largest of 1 to 16 that fits with the estimate's error."),
        },
        hide_index=True,
        height=min(38 * len(found) + 40, 560),
        alt="Cards and counts on which the run fits, the cheapest first, with hours and cost.",
    )
    missing = [catalogue[id].name for id in chosen if id not in {o.card.id for o in found}]
    if missing:
        st.caption(f"Not even 64 of these hold it: {', '.join(plain(n) for n in missing)}.")
    with st.expander("How this is worked out", icon=":material/function:"):
        st.markdown(
            "Memory: the same estimate as everywhere, with one card whole and several dividing weights, gradients and optimizer state (FSDP2). "
            "Time: arithmetic at the card's rate, bytes at its bandwidth, and exchanges between cards, "
            "for all the tokens; nodes are taken to have eight cards. "
            "Loading, evaluation, saving, restarts and waiting for cards are not in it."
        )
        for note in sorted({note for o in found for note in step_time(o.run).notes}):
            st.caption(plain(f"{note[:1].upper()}{note[1:]}."))
