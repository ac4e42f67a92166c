"""Probe: a run's own model code without a GPU, every tensor of the step counted, beside the estimate."""

import streamlit as st

from advisor import knowledge
from advisor.evidence import Evidence, Fact
from advisor.job import Job, JobError, read_job
from advisor.run import resolve
from advisor.share import find_link, link, open_link
from advisor.views.address import arrived, write
from advisor.views.job_line import describe
from advisor.views.probing import show_probe
from advisor.views.words import plain

HELD = st.session_state  # to_probe: the job; to_probe_lost: what a link lost
MAX_JOB = 100_000
EXAMPLE = read_job(
    {
        "version": 1,
        "model": {"name": "Qwen/Qwen2.5-0.5B"},
        "method": {"kind": "full"},
        "objective": "sft",
        "precision": {"weights": "bf16", "compute": "bf16"},
        "optimizer": {"name": "adamw"},
        "batch": {"micro_batch": 2, "seq_len": 1024},
        "activations": {"checkpointing": "full", "attention": "sdpa"},
        "hardware": {"gpu": "rtx-3090"},
    }
)


def take(text: str) -> None:
    """A job file or a link, pasted."""
    if query := find_link(text[:MAX_JOB]):
        take_link(query)
        return
    try:
        import yaml

        HELD.to_probe, HELD.to_probe_lost = read_job(yaml.safe_load(text[:MAX_JOB]) or {}), ()
    except (JobError, yaml.YAMLError, RecursionError) as error:
        HELD.complaint = f"This is no job file: {str(error).splitlines()[0]}"


def take_link(query: str | dict[str, str]) -> None:
    opened = open_link(query)
    HELD.to_probe, HELD.to_probe_lost = opened.job, opened.dropped


def take_pasted() -> None:
    if HELD.probe_job.strip():
        take(HELD.probe_job)
    else:
        HELD.complaint = "Paste a job file or a link first."


def others() -> dict[str, Job]:
    """Runs that other pages of this session hold."""
    found = {}
    if (report := HELD.get("report")) is not None and report.run is not None:
        found["the run that was diagnosed"] = report.run.stated
    if HELD.get("explored") is not None:
        found["the run in Explore"] = HELD.explored
    return found


def put(job: Job) -> None:
    HELD.to_probe, HELD.to_probe_lost = job, ()


here = arrived("probe")
if here:
    take_link(here)

st.title("Probe")
st.markdown("The estimate is arithmetic. The probe runs the model's own code, autograd and optimizer without a GPU, and counts every tensor.")
with st.container():  # always there: what stands below keeps its place, and an open part stays open
    if complaint := HELD.pop("complaint", None):
        st.warning(plain(complaint), icon=":material/info:")
    for text in HELD.get("to_probe_lost", ()):
        st.warning(f"The link held something that could not be used: {plain(text)}", icon=":material/link_off:")

job = HELD.get("to_probe")
with st.container(horizontal=True):
    for label, held in others().items():
        if held != job:
            st.button(f"Take {label}", key=f"probe-take:{label}", icon=":material/input:", on_click=put, args=(held,))
    if job is None:
        st.button("Take an example: Qwen2.5 0.5B on one card of 24 GB", key="probe-example", icon=":material/lightbulb:", on_click=put, args=(EXAMPLE,))
with st.expander("A job file or a link of your own", icon=":material/edit_note:", expanded=job is None):
    st.text_area(
        "Paste a job file (YAML or JSON) or a link of this app", key="probe_job", height=160, placeholder="version: 1\nmodel: {name: Qwen/Qwen2.5-0.5B}\n..."
    )
    st.button("Take it", on_click=take_pasted, icon=":material/check:", type="primary" if job is None else "secondary")

if job is None:
    st.page_link(knowledge.folder("pages") / "explore.py", label="Or set a run in Explore and come back", icon=":material/tune:")
    st.stop()
run = resolve(job, Evidence(facts=tuple(Fact(f, job.get(f), "stated") for f in ("batch.micro_batch", "batch.seq_len") if job.get(f) is not None)))
st.header("This run")
st.markdown(describe(run.job))
show_probe(run, "probe", primary=True)
write("probe", link(job, Evidence()).parameters)
