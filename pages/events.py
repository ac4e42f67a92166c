"""Events: the log of a watched run, opened: what was held twice, widened, kept, or not recomputed, each with its place."""

import streamlit as st

from advisor.views.events import MAX_BYTES, of_upload, show_events

EXAMPLE = """from advisor import watch

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

st.title("Events")
st.markdown("Watch a run, then open its log: what was held twice, widened, kept or not recomputed, and the line that did it.")
dropped = st.file_uploader("The log of a watched run", type=["jsonl", "json", "log", "txt", "1", "2"], key="events_file", max_upload_size=MAX_BYTES // 1024**2)
if dropped is None:
    st.header("How to watch a run")
    st.markdown("Around a plain loop. It keeps to 3 % of the time by its own clock; the first steps, which it looks at closely, cost more:")
    st.code(EXAMPLE, language=None, wrap_lines=True)
    st.markdown("With transformers' Trainer:")
    st.code(TRAINER, language=None, wrap_lines=True)
    st.markdown("With Lightning:")
    st.code(LIGHTNING, language=None, wrap_lines=True)
    st.markdown("The log has sizes, dtypes, places and counters. It has no tensor values and no data. On a terminal: `advisor events events.jsonl`.")
else:
    found, complaint = of_upload(dropped.getvalue())
    if found is None:
        st.warning(complaint, icon=":material/info:")
    else:
        show_events(found)
