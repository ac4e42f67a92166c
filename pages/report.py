"""Report: a saved diagnosis by its id, computed again; what happened afterwards can be added, and its owner can delete it."""

from datetime import UTC, datetime

import streamlit as st

from advisor import knowledge
from advisor.diagnosis import diagnose_reading
from advisor.planner.constraints import Constraints
from advisor.reading import Reading, read
from advisor.render import words
from advisor.share import allowed_of, link, measured_of, open_link, ticks_of, with_allowed, with_measured, with_ticks
from advisor.stating import StatingError, state, validated
from advisor.views.allowing import in_words
from advisor.views.causes import show_causes
from advisor.views.changes import show_changes
from advisor.views.ledger_chart import show_ledger
from advisor.views.measured import forget, measured_now, show_told, tell
from advisor.views.saving import sender, store_engine
from advisor.views.together import tick, ticks_to_share, untouched
from advisor.views.verdict import banner, figures, printed
from advisor.views.words import plain

HELD = st.session_state  # report-said: a sentence to show once; report-gone: deleted here


def day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%-d %B %Y")


def stop(says: str) -> None:
    st.info(says, icon=":material/search_off:")
    st.page_link(knowledge.folder("pages") / "diagnose.py", label="Make a new diagnosis", icon=":material/troubleshoot:")
    st.stop()


def remove(id: str) -> None:
    if store.delete(engine, id, HELD.get("report-token", "")):
        HELD["report-gone"] = True
    else:
        HELD["report-said"] = "Not deleted: this is not the token of this report."


def outcome(id: str, fixed: bool) -> None:
    note = "" if fixed else HELD.get("report-error", "")
    if not fixed and not note.strip():
        HELD["report-said"] = "Paste the new error first."
        return
    try:
        store.record(engine, id, fixed=fixed, note=note, sender=sender())
        HELD["report-said"] = "Written down. Thank you."
    except StoreError as error:
        HELD["report-said"] = f"Not written down: {error}."


def reading_of(saved: dict, more: str = "") -> tuple[Reading, tuple[str, ...]]:
    """What the report was made from: its text where that was kept, else its link; with a new error, that instead of the old one."""
    opened = open_link(saved["link"])
    if more:
        fresh = read([("new error", more)])
        job, evidence = opened.job, fresh.evidence.with_facts(opened.evidence.facts)
        return Reading(job, evidence), ()
    if saved.get("texts"):
        return put_right(read([(name, content) for name, content in saved["texts"]]), saved.get("stated") or {}), ()
    return Reading(opened.job, opened.evidence), opened.dropped


def put_right(reading: Reading, stated: dict) -> Reading:
    """With what its reader corrected on the page before saving."""
    try:
        return Reading(*state(reading.job, reading.evidence, {path: validated(path, value) for path, value in stated.items()}, "this page"))
    except StatingError:
        return reading


st.title("Saved diagnosis")
id = st.query_params.get("id", "")
try:
    from advisor import store
    from advisor.database import StoreError

    engine = store_engine()
    saved = None if engine is None or not id else store.find(engine, id)
except ValueError as error:
    stop(f"Saved reports cannot be opened at the moment: {plain(error)}.")
if HELD.pop("report-gone", False):
    stop("The report is deleted, with everything that was added to it.")
if engine is None:
    stop("Saving is off on this server, so there is no report here.")
if saved is None:
    stop("There is no report of this id: it may have expired or been deleted." if id else "The address of a saved report ends in ?id= and twelve letters.")

with st.container():  # always there: what stands below keeps its place, and an open part stays open
    if said := HELD.pop("report-said", None):
        st.warning(plain(said), icon=":material/info:")
body = saved.body
reading, dropped = reading_of(body)
allow, margin = allowed_of(body["link"]) or (Constraints(), None)
report = diagnose_reading(reading, allow=allow, margin_bytes=margin)
if HELD.get("report-shown") != id:  # what was ticked on another report says nothing of this one
    HELD["report-shown"] = id
    untouched()
    if (ticks := ticks_of(body["link"])) is not None:
        tick(report.plan, ticks)
    forget()
    tell(report, measured_of(body["link"]))
st.caption(f"Saved on {day(saved.created)} with version {plain(body.get('advisor', 'not known'))}; kept until {day(saved.expires)}.")
for text in dropped:
    st.warning(f"It held something that could not be used: {plain(text)}", icon=":material/link_off:")
if (report.verdict, report.sentence) != (body.get("verdict"), body.get("sentence")):
    st.markdown(f"It said then: **{words.VERDICTS.get(body.get('verdict'), 'not known')}**. {plain(body.get('sentence') or '')} Computed again today:")
banner(report.verdict, report.sentence)
figures(report.ledger, report.capacity_bytes, report.capacity_why, report.run, report.verdict)
with st.container():  # always there, for the same reason
    show_told(report)
printed(report.evidence.failure, report.ledger)
if report.ledger is not None and report.ledger.peak().bytes:
    st.header("Who holds the memory, and when")
    show_ledger(report.ledger, report.capacity_bytes, "saved-ledger")
show_causes(report)
if limited := in_words(allow, margin):
    st.caption(f":material/rule: The plan keeps to these limits: {limited}.")
show_changes(report, [(name, content) for name, content in body.get("texts") or ()])
if body.get("texts"):
    with st.expander("The text it was made from, masked", icon=":material/article:"):
        for name, content in body["texts"]:
            st.caption(plain(name))
            st.code(content, language=None, wrap_lines=True, height=240)
shared = with_measured(with_ticks(with_allowed(link(reading.job, reading.evidence), allow, margin), ticks_to_share(report)), measured_now(report))
st.page_link(knowledge.folder("pages") / "diagnose.py", label="Open it in Diagnose", icon=":material/troubleshoot:", query_params=shared.parameters or None)

st.header("Did it help?")
with st.container():  # always there, for the same reason
    for number, told in enumerate(saved.outcomes):
        icon, says = (":material/check_circle:", "Fixed") if told.fixed else (":material/error:", "Not fixed, and there is a new error")
        st.markdown(f"{icon} **{says}**, {day(told.recorded)}")
        if told.note:
            with st.expander(f"The new error of {day(told.recorded)}"):
                st.code(told.note, language=None, wrap_lines=True)
                again, _ = reading_of(body, told.note)
                parameters = link(again.job, again.evidence).parameters
                st.page_link(
                    knowledge.folder("pages") / "diagnose.py",
                    label=f"Diagnose new error {number + 1} with the settings of this report",
                    icon=":material/troubleshoot:",
                    query_params=parameters or None,
                )
st.button("It is fixed", key="report-fixed", icon=":material/check:", on_click=outcome, args=(id, True))
with st.expander("It is not fixed", icon=":material/error:"):
    st.text_area("The new error", key="report-error", height=120, max_chars=store.MAX_NOTE, help="It is masked and kept with the report.")
    st.button("Add the new error", key="report-not-fixed", on_click=outcome, args=(id, False))
with st.expander("Delete this report", icon=":material/delete:"):
    st.text_input("The token that was shown when it was saved", key="report-token")
    st.button("Delete it", key="report-delete", on_click=remove, args=(id,))
