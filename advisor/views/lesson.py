"""Pieces of a lesson: a prediction before the figure, a recorded step, a failure whose cause the engine names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import streamlit as st

from advisor import knowledge, lessons
from advisor.evidence import Evidence
from advisor.knowledge import KnowledgeError
from advisor.ledger import explain
from advisor.render import words
from advisor.share import link
from advisor.units import show
from advisor.views.causes import has_page, library_link
from advisor.views.ledger_chart import show_ledger
from advisor.views.lifetimes import show_step
from advisor.views.words import plain

Kind = Literal["primary", "secondary"]  # one thing to do on a screen
Done = Callable[[str], None]  # called with the step's id: "1" a prediction, "1f" a failure explained, "w1" one of the first week's


@st.cache_data(show_spinner=False, max_entries=64)
def _answered(files: tuple[tuple[str, str], ...]) -> tuple[str, list[tuple[str, bool]], str]:
    """The engine's cause of a failure, what speaks for it, and the first change of its plan."""
    from advisor.diagnosis import diagnose

    report = diagnose(list(files))
    first = report.findings[0]
    step = report.plan.steps[0].title if report.plan.steps else ""
    return first.cause, [(says.says, says.speaks_for) for says in words.distinct(first.evidence)[:4]], step


def answered(asked: lessons.Failure) -> tuple[str, list[tuple[str, bool]], str]:
    """The engine's answer to a failure: cause, evidence, first change."""
    return _answered(tuple(lessons.files_of(asked).items()))


def _reveal(name: str, step: str, done: Done) -> None:
    guess = st.session_state[f"learn-guess:{name}"]
    st.session_state[f"learn-told:{name}"] = guess
    if guess is not None:
        done(step)


def _check(name: str, asked: lessons.Failure, step: str, done: Done) -> None:
    chosen = st.session_state[f"learn-choice:{name}"]
    st.session_state[f"learn-checked:{name}"] = chosen
    if chosen is not None and chosen == answered(asked)[0]:
        done(step)


def show_prediction(name: str, lesson: lessons.Lesson, step: str, done: Done) -> None:
    """The question, a figure to write, and only then the engine's."""
    told = st.session_state.get(f"learn-told:{name}")
    st.header("Your prediction")
    st.markdown(lesson.ask.text)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.number_input("GiB", min_value=0.0, value=None, step=0.5, key=f"learn-guess:{name}", placeholder="roughly", persist_state="session")
        kind: Kind = "secondary" if told is not None else "primary"
        st.button("Show the engine's figure", key=f"learn-reveal:{name}", type=kind, on_click=_reveal, args=(name, step, done))
    with st.expander("A hint", icon=":material/lightbulb:"):
        st.markdown(lesson.ask.hint)
    if f"learn-told:{name}" not in st.session_state:
        return
    if told is None:
        st.info("Write a figure first, however rough: what you expected is what you will remember.", icon=":material/edit:")
        return
    true, ledger, held = lessons.figure(lesson.ask)
    judged, run = lessons.judged(told, true), lessons.run_of(lesson.ask)
    said = {"right": "Right", "rough": "The right order", "far": "Farther off than you may have thought"}[judged]
    box, icon = (st.info, ":material/lightbulb:") if judged == "far" else (st.success, ":material/check:")
    box(f"You said {told:g} GiB; the estimate is {true:,.1f} GiB. {lesson.after}", title=said, icon=icon)
    show_ledger(ledger, run.usable[0] if run.usable else None, f"learn-ledger:{name}")
    st.page_link(
        knowledge.folder("pages") / "explore.py",
        label="Move this run's settings yourself, in Explore",
        icon=":material/tune:",
        query_params=link(run.stated, Evidence()).parameters or None,
    )
    with st.expander("The formulas with this run's numbers", icon=":material/function:"):
        for holding in held[:8]:
            st.markdown(f"{plain(holding.name)}: **{show(holding.bytes)}**")
            st.code(explain(holding), language=None, wrap_lines=True)
            st.caption(plain(f"Source: {holding.source}."))


def show_recorded(name: str, file: str) -> None:
    """A real step to scrub through, tensor by tensor."""
    st.header("A step, tensor by tensor")
    try:
        says, source, frames = lessons.recorded(file)
    except KnowledgeError as error:  # a team's own step: its lesson is still worth reading
        st.warning(plain(str(error)), icon=":material/warning:")
        return
    st.markdown(f"Move through it: what is born, what dies, and what is alive together. {says}.")
    show_step(frames, f"learn-step:{name}")
    st.caption(plain(f"Probed: {source}."))


def show_failure(name: str, asked: lessons.Failure, step: str, done: Done, *, ready: bool = True) -> None:
    """A failure's texts, causes to choose from, and the engine's verdict on the choice. ``ready``: whether checking is the thing to do now."""
    st.header("A failure to explain")
    st.markdown(asked.text)
    for file, text in lessons.files_of(asked).items():
        st.caption(plain(file))
        st.code(text, language=None, wrap_lines=True)
    st.caption(f"From: {plain(lessons.source_of(asked))}")
    st.radio(
        "What is the cause?", asked.choices, index=None, key=f"learn-choice:{name}", format_func=lambda c: words.title("causes", c), persist_state="session"
    )
    kind: Kind = "primary" if ready else "secondary"
    st.button("Check my answer", key=f"learn-check:{name}", on_click=_check, args=(name, asked, step, done), type=kind)
    with st.expander("A hint for the failure", icon=":material/lightbulb:"):
        st.markdown(asked.hint)
    if f"learn-checked:{name}" not in st.session_state:
        return
    chosen = st.session_state[f"learn-checked:{name}"]
    cause, evidence, change = answered(asked)
    if chosen is None:
        st.info("Choose a cause first.", icon=":material/edit:")
    elif chosen != cause:
        st.warning("The engine finds something else more likely. Look again, or take the hint.", title="Not this", icon=":material/replay:")
    else:
        first = f" First change: {plain(change)}." if change else ""
        st.success(f"{plain(words.title('causes', cause))}.{first}", title="That is it", icon=":material/check_circle:")
        st.markdown("\n".join(f"- {'for' if speaks_for else 'against'}: {plain(says)}" for says, speaks_for in evidence))
        if has_page("causes", cause):
            library_link("causes", cause, "Read about this cause")
