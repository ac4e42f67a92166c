"""Events: the log of a watched run, opened: what was held twice, widened, kept, or not recomputed, each with its place."""

import streamlit as st

from advisor import knowledge
from advisor.views.events import MAX_BYTES, of_upload, show_events

LOOP = """from advisor import watch

with watch(model, optimizer, log="events.jsonl"):
    for batch in loader:
        ...  # the loop as it is
"""
TRAINER = """from advisor.measurement.callback import watching

trainer = Trainer(..., callbacks=[watching(log="events.jsonl")])
"""
LIGHTNING = """from advisor.measurement.lightning import watching

trainer = Trainer(..., callbacks=[watching(log="events.jsonl")])
"""

RECORDED = "keeps-its-losses"  # knowledge/lessons: a script, and the log that watching it wrote


def show_example(shown: bool) -> None:
    st.query_params.from_dict({"example": "1"} if shown else {})


def how_to() -> None:
    """An example to look at, and the lines that make a log of one's own."""
    st.button("Look at an example: a loop that keeps its losses", icon=":material/lightbulb:", on_click=show_example, args=(True,), key="events-example")
    st.header("How to watch a run")
    st.markdown("Around a plain loop. It keeps to 3 % of the time by its own clock; the first steps, which it looks at closely, cost more:")
    st.code(LOOP, language=None, wrap_lines=True)
    st.markdown("With transformers' Trainer:")
    st.code(TRAINER, language=None, wrap_lines=True)
    st.markdown("With Lightning:")
    st.code(LIGHTNING, language=None, wrap_lines=True)
    st.markdown("The log has sizes, dtypes, places and counters. It has no tensor values and no data. On a terminal: `advisor events events.jsonl`.")


st.title("Events")
st.markdown("Watch a run, then open its log: what was held twice, widened, kept or not recomputed, and the line that did it.")
dropped = st.file_uploader("The log of a watched run", key="events_file", max_upload_size=MAX_BYTES // 1024**2)
example = dropped is None and "example" in st.query_params
if dropped is None and not example:
    how_to()
    st.stop()
if example:
    st.markdown("A recorded example: eight steps of a small model on a CPU, with torch 2.13.0. What in the script keeps memory, and in which line?")
    st.button("Close the example", icon=":material/close:", on_click=show_example, args=(False,), key="events-close")
    with st.expander("The script that was watched", icon=":material/code:"):
        st.code(knowledge.path("lessons", f"{RECORDED}.py").read_text(encoding="utf-8"), language=None, line_numbers=True)
found, complaint = of_upload(dropped.getvalue() if dropped is not None else knowledge.path("lessons", f"{RECORDED}.jsonl").read_bytes())
if found is None:
    st.warning(complaint, icon=":material/info:")
else:
    show_events(found)
