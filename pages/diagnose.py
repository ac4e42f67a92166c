"""Diagnose: paste what there is of a failed run; the verdict, the causes, the plan, and a link that brings it back."""

import streamlit as st
from msgspec.structs import replace

from advisor import knowledge
from advisor.diagnosis import diagnose_reading, replanned
from advisor.evidence import Evidence
from advisor.job import Job
from advisor.reading import Reading, read
from advisor.share import ALLOW, MEASURED, TICKS, find_link, link, measured_of, open_link, parameters_of, ticks_of, with_allowed, with_measured, with_ticks
from advisor.stating import StatingError, state, validated
from advisor.views import allowing
from advisor.views.address import arrived, write
from advisor.views.causes import show_causes, show_others
from advisor.views.changes import show_changes, show_first
from advisor.views.facts import assumed, broken, follow_ups, question, understood
from advisor.views.fewer import show_fewer
from advisor.views.field_widget import NOT_KNOWN
from advisor.views.kept import KEPT
from advisor.views.leaving import show_leaving
from advisor.views.ledger_chart import show_ledger
from advisor.views.measured import forget, measured_figure, measured_now, show_told, tell
from advisor.views.parts import open_part
from advisor.views.proving import show_proof
from advisor.views.samples import show_samples
from advisor.views.saving import texts_of
from advisor.views.together import tick, ticks_to_share, untouched
from advisor.views.verdict import banner, figures, printed
from advisor.views.words import plain

MAX_UPLOAD, MAX_LINK_FILE = 64 * 1024 * 1024, 100_000  # bytes
# reading: what was read; report: the answer to it; shared: its link; leaving, address: the link with what is ticked; dropped: what a link lost
HELD = st.session_state


def answer(reading: Reading) -> None:
    """Diagnose and put the link in the address bar."""
    untouched()
    forget()
    allow, margin = allowing.limits()
    HELD.reading, HELD.report = reading, diagnose_reading(reading, allow=allow, margin_bytes=margin)
    HELD.shared = link(reading.job, reading.evidence)


def plan_again() -> None:
    """What the plan may do was changed."""
    untouched()
    allow, margin = allowing.limits()
    HELD.report = replanned(HELD.report, allow=allow, margin_bytes=margin)


def stated(path: str, key: str) -> None:
    """The reader put a value right."""
    value = HELD[key]
    if value in (None, "", NOT_KNOWN):
        return
    try:
        answer(Reading(*state(HELD.reading.job, HELD.reading.evidence, {path: validated(path, value)}, "this page")))
    except StatingError as error:
        HELD.complaint = str(error)


def seen(mark: str) -> None:
    """The reader told what a second try showed."""
    evidence = HELD.reading.evidence
    answer(Reading(HELD.reading.job, replace(evidence, marks=(*evidence.marks, mark))))


def take_sample(files: dict[str, str]) -> None:
    HELD.pasted = "\n\n".join(files.values())
    HELD.dropped = ()
    given(list(files.items()))


def given(found: list[tuple[str, str | bytes]]) -> None:
    """Read it; the text is kept in this session in case the reader saves the diagnosis with it."""
    HELD.texts = texts_of(found)
    answer(read(found))


def take_link(query: str | dict[str, str]) -> None:
    ticks, before = ticks_of(query), allowing.limits()
    unread = allowing.take(query)
    if "report" in HELD and isinstance(query, dict) and {k: v for k, v in query.items() if k not in (TICKS, MEASURED, ALLOW)} == HELD.shared.parameters:
        untouched()  # back or forward over a tick: the diagnosis and its text stay
        if allowing.limits() != before:
            plan_again()
        if ticks is not None:
            tick(HELD.report.plan, ticks)
        return
    opened = open_link(query)
    told = measured_of(query)
    lost = ("measured: not a size, a device and which run",) if told is None and MEASURED in parameters_of(query) else ()
    HELD.dropped, HELD.texts = (*opened.dropped, *lost, *unread), ()
    if opened.job != Job() or opened.evidence != Evidence():
        answer(Reading(opened.job, opened.evidence))
        if ticks is not None:
            tick(HELD.report.plan, ticks)
        tell(HELD.report, told)


def files_key() -> str:
    return f"files:{HELD.get('dropping', 0)}"


def take_pasted() -> None:
    files = [(file.name, file.getvalue()[:MAX_UPLOAD]) for file in HELD.get(files_key()) or []]
    found = [*([("pasted text", HELD.pasted)] if HELD.pasted.strip() else []), *files]
    HELD.dropped = ()
    if len(found) == 1 and (query := find_link(as_text(found[0][1]))):
        take_link(query)
    elif found:
        given(found)
    else:
        HELD.complaint = "Paste something or drop a file first; or try one of the samples."


def as_text(content: str | bytes) -> str:
    return content if isinstance(content, str) else content[:MAX_LINK_FILE].decode("utf-8", errors="replace")


def start_again() -> None:
    forget_report()
    HELD.pasted = ""  # taken away, the browser would keep the old text in the box
    HELD.dropping = HELD.get("dropping", 0) + 1  # dropped files go only with the box that holds them


def forget_report() -> None:
    """The page without a diagnosis; what was pasted stays, for who goes back to add to it."""
    for key in ("reading", "report", "dropped", "texts", "shared", KEPT):
        HELD.pop(key, None)
    HELD.address = {}
    allowing.take({})


here = arrived("diagnose")
if here:
    take_link(here)
elif here is not None:
    forget_report()
if "report" in HELD:
    HELD.leaving = with_measured(with_ticks(with_allowed(HELD.shared, *allowing.limits()), ticks_to_share(HELD.report)), measured_now(HELD.report))
    HELD.address = HELD.leaving.parameters
if "address" in HELD:
    write("diagnose", HELD.address)

st.title("Why did the run die?" if "report" not in HELD else "Diagnosis")
if "report" not in HELD:
    st.markdown("Paste what you have. You get the cause with its evidence, the lines to change first, and what the changed run would need.")

with st.container() if "report" not in HELD else st.expander("What you pasted", icon=":material/edit_note:", expanded=HELD.report.verdict == "unreadable"):
    st.text_area(
        "Paste the error, the log, the config, the command, or all of them",
        key="pasted",
        height=180,
        placeholder="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.79 GiB. GPU 0 has a total capacity of ...",
        help="Anything helps: error texts, logs of many ranks, Python snippets, YAML and JSON configs of trainers, nvidia-smi output. Nothing is executed.",
    )
    st.file_uploader("Or drop files: logs, configs, scripts, archives", accept_multiple_files=True, key=files_key(), max_upload_size=64)
    with st.container(horizontal=True):
        st.button("Diagnose", type="primary", icon=":material/troubleshoot:", on_click=take_pasted)
        if "report" in HELD:
            st.button("Start again", icon=":material/restart_alt:", on_click=start_again)
    st.caption(
        ":material/lock: What you paste stays in this session and is not stored. Secrets, user names, hosts and home paths are masked as it comes in; "
        "the link in the address bar holds settings and counters, never text."
    )
with st.container():  # always there: what stands below keeps its place, and an open part stays open
    if complaint := HELD.pop("complaint", None):
        st.warning(plain(complaint), icon=":material/info:")
    for text in HELD.get("dropped") or ():
        st.warning(f"The link held something that could not be used: {plain(text)}", icon=":material/link_off:")

if "report" not in HELD:
    show_samples(take_sample)
    st.stop()

report = HELD.report
banner(report.verdict, report.sentence)
figures(report.ledger, report.capacity_bytes, report.capacity_why, report.run, report.verdict)
with st.container():  # always there, for the same reason
    show_told(report)
printed(report.evidence.failure, report.ledger)
show_first(report)
with st.container():  # always there, for the same reason
    question(report, stated, seen)
if report.verdict == "unreadable":
    understood(report)
    st.stop()
if report.verdict != "not-memory" and report.ledger is not None and report.ledger.peak().bytes:
    st.header("Who holds the memory, and when")
    clicked = show_ledger(report.ledger, report.capacity_bytes, "ledger")
    open_part(report.ledger, clicked, "part")
show_causes(report)
follow_ups(report, seen)
show_changes(report, HELD.get("texts", ()))
if report.run is not None and report.verdict != "not-memory":
    show_fewer(report, *allowing.limits())
    allowing.show_limits(plan_again)
    show_proof(report)
if report.verdict != "not-memory":  # nothing was estimated from it
    broken(report)
    assumed(report, stated)
understood(report)
show_others(report)
for note in report.notes:
    st.caption(plain(note))
show_leaving(report, HELD.leaving, HELD.get("texts", ()), measured_figure(report))
if report.verdict != "not-memory":
    st.page_link(knowledge.folder("pages") / "explore.py", label="Open this run in Explore", icon=":material/tune:", query_params=HELD.address or None)
