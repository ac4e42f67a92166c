"""Explore: move the settings of a run and see what each part of memory does, what fits, and on which cards."""

import streamlit as st

from advisor import cards
from advisor.architecture.presets import names
from advisor.arithmetic import CannotEstimate, estimate
from advisor.evidence import Evidence, Fact
from advisor.job import JobError, read_job
from advisor.ledger import Ledger
from advisor.run import Run, resolve
from advisor.share import link, open_link
from advisor.stating import StatingError, put, validated
from advisor.verdict import judge
from advisor.views.address import arrived, write
from advisor.views.batch_map import show_map
from advisor.views.card_table import show_cards
from advisor.views.comparing import show_comparison
from advisor.views.field_widget import ask
from advisor.views.kept import kept
from advisor.views.layout_table import show_layouts, show_limits
from advisor.views.ledger_chart import show_ledger
from advisor.views.parts import open_part
from advisor.views.probing import show_probe
from advisor.views.technique_table import show_techniques
from advisor.views.verdict import banner, figures
from advisor.views.words import plain

HELD = st.session_state  # explored: the job as set; refused: why a change was not taken
FIRST = read_job(
    {
        "version": 1,
        "model": {"name": "meta-llama/Llama-3.1-8B"},
        "method": {"kind": "full"},
        "objective": "sft",
        "precision": {"weights": "bf16", "compute": "bf16"},
        "optimizer": {"name": "adamw"},
        "batch": {"micro_batch": 2, "seq_len": 4096},
        "activations": {"checkpointing": "full", "attention": "flash-2"},
        "parallel": {"strategy": "fsdp2", "shard": 8},
        "hardware": {"gpu": "a100-80gb"},
    }
)
POWERS = tuple(2**n for n in range(11))
TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def take(path: str, value: object) -> None:
    """Set a field of the job; what does not go together is said, and the job stays."""
    try:
        HELD.explored = put(HELD.explored, path, validated(path, value))
    except (JobError, StatingError) as error:
        HELD.refused = str(error)


def worked_out() -> tuple[Run, Ledger | None, str, str]:
    """The run of the job, its ledger, the verdict and its sentence; no ledger where a deciding fact is not known."""
    found = resolve(job, Evidence(facts=tuple(Fact(f, job.get(f), "stated") for f in ("batch.micro_batch", "batch.seq_len") if job.get(f) is not None)))
    try:
        ledger = estimate(found)
    except CannotEstimate as error:
        return found, None, "incomplete", str(error)
    return found, ledger, *judge(found, ledger)


def moved(path: str, key: str) -> None:
    if HELD[key] is not None and HELD[key] != "":
        take(path, HELD[key])


def go_to(cell: tuple[int, int] | None) -> None:
    """A cell of the map was clicked: the run goes there. The chart keeps its selection, so each click is taken once."""
    if cell is None or cell == HELD.get("explore-cell"):
        return
    HELD["explore-cell"] = cell
    take("batch.micro_batch", cell[0])
    take("batch.seq_len", cell[1])
    st.rerun()


here = arrived("explore")
if here:
    opened = open_link(here)
    HELD.explored, HELD.explored_lost = opened.job, opened.dropped
elif here is not None or "explored" not in HELD:
    HELD.explored, HELD.explored_lost = FIRST, ()

job = HELD.explored
run, ledger, verdict, sentence = kept("explored", (job,), worked_out)

st.title("Explore")
with st.container():  # always there: what stands below keeps its place, and an open part stays open
    if refused := HELD.pop("refused", None):
        st.warning(plain(refused), icon=":material/info:")
    for text in HELD.get("explored_lost", ()):
        st.warning(f"The link held something that could not be used: {plain(text)}", icon=":material/link_off:")

banner(verdict, sentence)
usable = run.usable
figures(ledger, usable[0] if usable else None, usable[1] if usable else None, run, verdict)

controls, result = st.columns([1, 3], gap="large")
with controls:

    def field(path: str, options: tuple | None = None, formatted=None) -> None:
        ask(path, run.job.get(path), f"explore:{path}", moved, options=options, formatted=formatted)

    field("model.name", tuple(sorted({*names(), run.job.model.name or ""} - {""})))
    field("hardware.gpu", tuple(cards.catalogue()), lambda id: cards.catalogue()[id].name if id in cards.catalogue() else str(id))
    field("batch.micro_batch", POWERS[:9])
    field("batch.seq_len", TOKENS)
    field("method.kind")
    if run.job.method.kind in ("lora", "dora"):
        field("method.base")
        field("method.rank", POWERS[2:9])
    field("activations.checkpointing")
    field("activations.attention")
    field("activations.loss")
    field("optimizer.name")
    field("precision.weights")
    field("parallel.strategy")
    if run.job.parallel.strategy not in (None, "none"):
        field("parallel.shard", POWERS)
    more = st.expander("More settings", on_change="rerun", key="explore-more")
    if more.open:
        with more:
            for path in (
                "hardware.gpus_per_node",
                "hardware.nodes",
                "objective",
                "precision.master",
                "precision.gradients",
                "optimizer.implementation",
                "reference",
                "framework.name",
            ):
                field(path)
            for path in ("parallel.tensor", "parallel.context", "parallel.pipeline"):
                field(path, POWERS[:7])
            for path in ("offload.parameters", "offload.optimizer", "offload.activations"):
                field(path)

with result:
    if run.missing:
        st.caption(f"Not known, and it decides: {plain(', '.join(run.missing))}")
    if ledger is not None:
        views = ["By phase", "Batch × sequence", "Which cards", "Techniques", "Layouts", "Compare", "Probe"]
        phases, fitting, holding, changing, laying, beside, probing = st.tabs(views, on_change="rerun", key="explore-view")
        if phases.open:
            with phases:
                open_part(ledger, show_ledger(ledger, usable[0] if usable else None, "explore-ledger"), "explore-part")
        if fitting.open:
            with fitting:
                show_limits(run)
                go_to(show_map(run))
        if holding.open:
            with holding:
                show_cards(run)
        if changing.open:
            with changing:
                show_techniques(run)
        if laying.open:
            with laying:
                show_layouts(run)
        if beside.open:
            with beside:
                show_comparison(run)
        if probing.open:
            with probing:
                show_probe(run, "explore-probe")

write("explore", link(job, Evidence()).parameters if job != FIRST else {})
