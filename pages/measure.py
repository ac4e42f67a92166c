"""Measure: a run's real steps on your own device, beside the estimate and the probe of the same run."""

import streamlit as st

from advisor import knowledge
from advisor.compare import CompareError, of_job, of_json
from advisor.job import Job, JobError
from advisor.render.json import of_ledger
from advisor.run import resolve
from advisor.verdict import judge
from advisor.views.job_line import describe
from advisor.views.measuring import MAX_BYTES, of_text, show_measured
from advisor.views.words import plain

HELD = st.session_state
NODES = """torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29500 \\
  -m advisor.measurement job.yaml --out measured.json"""


def others() -> dict[str, Job]:
    """Runs that other pages of this session hold."""
    found = {}
    if (report := HELD.get("report")) is not None and report.run is not None:
        found["the run that was diagnosed"] = report.run.stated
    if HELD.get("explored") is not None:
        found["the run in Explore"] = HELD.explored
    if HELD.get("to_probe") is not None:
        found["the run in Probe"] = HELD.to_probe
    return found


def what_to_run() -> None:
    st.header("1. Run it where it counts")
    held = others()
    if held:
        name = st.selectbox("Which run", list(held), format_func=lambda text: text[:1].upper() + text[1:], key="measure_which")
        st.markdown(describe(resolve(held[name]).job))
        st.download_button("Job file", held[name].to_yaml(), "job.yaml", "application/yaml", on_click="ignore", icon=":material/settings:")
    else:
        st.page_link(knowledge.folder("pages") / "explore.py", label="Set a run in Explore to get its job file here", icon=":material/tune:")
    st.markdown("On the machine with the GPU, next to `job.yaml` (random weights and tokens: no model is downloaded, no data is needed):")
    st.code("pip install 'training-memory-advisor[probe]'\nadvisor validate job.yaml --json > measured.json", language=None, wrap_lines=True)
    with st.expander("Several cards, the largest micro batch, a smaller card, your own run", icon=":material/terminal:"):
        st.markdown("Eight ranks with DDP or FSDP2; their ledgers are merged:")
        st.code("advisor validate job.yaml --nproc 8 --json > measured.json", language=None, wrap_lines=True)
        st.markdown("Two nodes of eight cards: the same command on each, with the first node's address; rank 0 writes the result:")
        st.code(NODES, language=None, wrap_lines=True)
        st.markdown("The largest micro batch that fits, found by running, as if the card had 24 GiB:")
        st.code("advisor validate job.yaml --largest --cap 24GiB", language=None, wrap_lines=True)
        st.markdown("Keep the measurement in a form that others can use:")
        st.code("advisor validate job.yaml --save measurements.yaml", language=None, wrap_lines=True)
        st.page_link(knowledge.folder("pages") / "events.py", label="Your own training run: watch it, and open its log in Events", icon=":material/visibility:")


def taken() -> str | bytes | None:
    st.header("2. Bring the result here")
    pasted = st.text_area("Paste measured.json", key="measured_text", height=120, placeholder='{"version": 1, "kind": "measured", ...}')
    dropped = st.file_uploader("Or drop it", type=["json", "txt"], key="measured_file", max_upload_size=MAX_BYTES // 1024**2)
    return dropped.getvalue() if dropped is not None else pasted.strip() or None


st.title("Measure")
st.markdown("The estimate is arithmetic and the probe runs without a GPU. A measurement takes a minute on the real card and settles it.")
what_to_run()
text = taken()
if text is None:
    st.stop()
st.header("3. Side by side")
measured, job, data, complaint = of_text(text)
if measured is None or job is None:
    st.warning(plain(complaint), icon=":material/info:")
    st.stop()
st.markdown(describe(job))
sides = []
try:
    sides.append(of_job("estimate", job))
except (CompareError, JobError) as error:
    st.warning(plain(error), icon=":material/info:")
for going in (HELD.get("probes") or {}).values():
    if going.done and not going.cancelled and going.future is not None and going.future.exception() is None and going.run.job == resolve(job).effective:
        probed = going.future.result().ledger
        sides.append(of_json("probe", of_ledger(going.run, probed, *judge(going.run, probed))))
        break
show_measured([*sides, measured], data)
st.caption("Each column is at its own largest moment. What a measurement does not tell apart is one row.")
