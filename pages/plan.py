"""Plan: before the run. Model, tokens, method and budget in; cards, hours and cost out, each with its range."""

import streamlit as st

from advisor import cards
from advisor.architecture.presets import names
from advisor.evidence import Evidence
from advisor.job import JobError, read_job
from advisor.planner.before import before
from advisor.run import resolve
from advisor.share import link, open_link, with_allowed
from advisor.share.allowing import written
from advisor.stating import StatingError, put, validated
from advisor.views import allowing
from advisor.views.address import arrived, write
from advisor.views.field_widget import ask
from advisor.views.kept import kept
from advisor.views.offers import Wishes, ranked, show_all, show_answer
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
        "batch": {"micro_batch": 8, "seq_len": 4096, "gradient_accumulation": 8, "total_tokens": 100_000_000},
        "activations": {"checkpointing": "full", "attention": "flash-2"},
    }
)
CARDS = ("rtx4090-24gb", "l40s-48gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")  # of one maker: another's are chosen, not offered
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
    HELD.planned, HELD.planned_lost = opened.job, (*opened.dropped, *allowing.take(here, "plan"))
elif here is not None or "planned" not in HELD:
    HELD.planned, HELD.planned_lost = FIRST, ()
    wishes_of({})
    allowing.take({}, "plan")

st.title("Plan")
st.markdown("Before the run: which cards hold it, how long it takes, and what that costs. Every figure is estimated, with its range.")
with st.container():  # always there: what stands below keeps its place, and an open part stays open
    if refused := HELD.pop("plan-refused", None):
        st.warning(plain(refused), icon=":material/info:")
    for text in HELD.get("planned_lost", ()):
        st.warning(f"The link held something that could not be used: {plain(text)}", icon=":material/link_off:")

job = HELD.planned
run = resolve(job, Evidence())
answer = st.container()  # above the settings also where all stand in one column: on a phone nobody should have to look for it
controls, result = st.columns([1, 3], gap="large")
with controls:

    def field(path: str, choices: tuple | None = None) -> None:
        ask(path, run.job.get(path), f"plan:{path}", take, options=choices)  # as it would run: a box must not show what nobody set and nothing assumes

    field("model.name", tuple(sorted({*names(), run.job.model.name or ""} - {""})))
    field("method.kind")
    with st.container():  # always there, for the same reason
        if run.job.method.kind in ("lora", "dora"):
            field("method.base")
            field("method.rank", (4, 8, 16, 32, 64, 128, 256))
    field("batch.total_tokens")
    field("batch.seq_len", TOKENS)
    field("batch.micro_batch", (1, 2, 4, 8, 16, 32))
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
    allowing.show_limits(switches=("no_new_dependency",), page="plan", column=True)
    allow, margin = allowing.limits("plan")


wishes = {"cards": ",".join(chosen)} if tuple(chosen) != CARDS else {}
wishes |= {name: f"{value:g}" for name, value in (("hours", hours), ("budget", budget)) if value}
wishes |= {f"price.{id}": f"{price:g}" for id, price in prices.items()}
said = written(allow, margin)
shared = with_allowed(link(job, Evidence()), allow, margin).parameters if job != FIRST or wishes or said else {}
write("plan", {**shared, **wishes} if shared else {})

if not chosen:
    answer.markdown("Choose at least one card.")
    st.stop()
with answer:
    wished = Wishes(tuple(chosen), hours, budget)
    asked = (job, tuple(chosen), tuple(prices.items()), hours, budget, said)
    found = ranked(kept("offers", asked, lambda: before(run, cards=chosen, prices=prices, most_hours=hours, budget=budget, allow=allow, margin_bytes=margin)))
    show_answer(found, wished)
with result:
    show_all(found, wished)
