"""Learn: eight short lessons. Predict a figure before it is shown, then find the cause of a failure; the engine is the judge."""

import streamlit as st

from advisor import lessons
from advisor.ledger import explain
from advisor.render import words
from advisor.units import show
from advisor.views.causes import has_page, library_link
from advisor.views.ledger_chart import show_ledger
from advisor.views.words import plain

HELD = st.session_state  # learned: steps done, "1" the prediction and "1f" the failure of lesson 1; learn-guess:NAME, learn-told:NAME: answers
NAMES = lessons.names()
NUMBERS = {name: str(number) for number, name in enumerate(NAMES, 1)}


@st.cache_data(show_spinner=False, max_entries=64)
def answered(name: str) -> tuple[str, list[tuple[str, bool]], str]:
    """The engine's cause of a lesson's failure, what speaks for it, and the first change of its plan."""
    report = lessons.diagnosed(lessons.lesson(name).failure)
    first = report.findings[0]
    step = report.plan.steps[0].title if report.plan.steps else ""
    return first.cause, [(says.says, says.speaks_for) for says in words.distinct(first.evidence)[:4]], step


def go(name: str | None) -> None:
    HELD["learn-lesson"] = name


def reveal(name: str) -> None:
    HELD[f"learn-told:{name}"] = HELD[f"learn-guess:{name}"]
    if HELD[f"learn-guess:{name}"] is not None:
        HELD.learned = HELD.learned | {NUMBERS[name]}


def check(name: str) -> None:
    chosen = HELD[f"learn-choice:{name}"]
    HELD[f"learn-checked:{name}"] = chosen
    if chosen is not None and chosen == answered(name)[0]:
        HELD.learned = HELD.learned | {f"{NUMBERS[name]}f"}


if "learned" not in HELD or ("done" in st.query_params and "learn-written" not in HELD):
    known = {step for number in NUMBERS.values() for step in (number, f"{number}f")}
    HELD.learned = frozenset(st.query_params.get("done", "").split(",")) & known
    wanted = st.query_params.get("lesson")
    HELD["learn-lesson"] = wanted if wanted in NAMES else None
elif st.query_params.get("lesson") != HELD.get("learn-written") and st.query_params.get("lesson") in NAMES:
    HELD["learn-lesson"] = st.query_params["lesson"]  # a link, or the browser's back button


def overview() -> None:
    st.markdown("Eight short lessons, a few minutes each: predict a figure, see what the engine says, then find out why a run died.")
    done = len(HELD.learned)
    st.progress(done / (2 * len(NAMES)), text=f"{done} of {2 * len(NAMES)} steps done. The address keeps your progress.")
    for name in NAMES:
        number = NUMBERS[name]
        both = sum(step in HELD.learned for step in (number, f"{number}f"))
        state = ("", " · half done", " · done")[both]
        icon = (":material/radio_button_unchecked:", ":material/contrast:", ":material/check_circle:")[both]
        st.button(f"{number}. {lessons.lesson(name).title}{state}", key=f"learn-open:{name}", icon=icon, on_click=go, args=(name,), type="tertiary")
    st.caption("A team adds failures of its own as files beside these: knowledge/lessons/ says how by example.")


def show_lesson(name: str) -> None:
    lesson = lessons.lesson(name)
    st.button("All lessons", icon=":material/arrow_back:", on_click=go, args=(None,))
    st.header(f"{NUMBERS[name]}. {lesson.title}")
    st.markdown(lesson.body)
    prediction(name, lesson)
    failure(name, lesson.failure)
    later = NAMES[NAMES.index(name) + 1 :]
    if later:
        st.button(f"Next: {lessons.lesson(later[0]).title}", icon=":material/arrow_forward:", on_click=go, args=(later[0],))


def prediction(name: str, lesson: lessons.Lesson) -> None:
    st.header("Your prediction")
    st.markdown(lesson.ask.text)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.number_input("GiB", min_value=0.0, value=None, step=0.5, key=f"learn-guess:{name}", placeholder="a rough figure is fine", persist_state="session")
        st.button("Show the engine's figure", key=f"learn-reveal:{name}", type="primary", on_click=reveal, args=(name,))
    with st.expander("A hint", icon=":material/lightbulb:"):
        st.markdown(lesson.ask.hint)
    if f"learn-told:{name}" not in HELD:
        return
    guess = HELD[f"learn-told:{name}"]
    if guess is None:
        st.info("Write a figure first, however rough: what you expected is what you will remember.", icon=":material/edit:")
        return
    true, ledger, held = lessons.figure(lesson.ask)
    said = {"right": "Right", "rough": "The right order", "far": "Farther off than you may have thought"}[lessons.judged(guess, true)]
    st.success(f"You said {guess:g} GiB; estimated are {true:,.1f} GiB. {lesson.after}", title=said, icon=":material/check:")
    usable = lessons.run_of(lesson.ask).usable
    show_ledger(ledger, usable[0] if usable else None, f"learn-ledger:{name}")
    with st.expander("The formulas with this run's numbers", icon=":material/function:"):
        for holding in held[:8]:
            st.markdown(f"{plain(holding.name)}: **{show(holding.bytes)}**")
            st.code(explain(holding), language=None, wrap_lines=True)
            st.caption(plain(f"Source: {holding.source}."))


def failure(name: str, asked: lessons.Failure) -> None:
    st.header("A failure to explain")
    st.markdown(asked.text)
    for file, text in lessons.files_of(asked).items():
        st.caption(plain(file))
        st.code(text, language=None, wrap_lines=True)
    st.caption(f"From: {plain(lessons.source_of(asked))}")
    st.radio(
        "What is the cause?", asked.choices, index=None, key=f"learn-choice:{name}", format_func=lambda c: words.title("causes", c), persist_state="session"
    )
    st.button("Check my answer", key=f"learn-check:{name}", on_click=check, args=(name,), type="primary")
    with st.expander("A hint for the failure", icon=":material/lightbulb:"):
        st.markdown(asked.hint)
    if f"learn-checked:{name}" not in HELD:
        return
    chosen = HELD[f"learn-checked:{name}"]
    cause, evidence, step = answered(name)
    if chosen is None:
        st.info("Choose a cause first.", icon=":material/edit:")
    elif chosen != cause:
        st.warning("The engine finds something else more likely. Look again, or take the hint.", title="Not this", icon=":material/replay:")
    else:
        st.success(
            f"{plain(words.title('causes', cause))}." + (f" First change: {plain(step)}." if step else ""), title="That is it", icon=":material/check_circle:"
        )
        st.markdown("\n".join(f"- {'for' if speaks_for else 'against'}: {plain(says)}" for says, speaks_for in evidence))
        if has_page("causes", cause):
            library_link("causes", cause, "Read about this cause")


st.title("Learn")
current = HELD.get("learn-lesson")
if current in NAMES:
    show_lesson(current)
else:
    overview()
parameters = ({"lesson": current} if current in NAMES else {}) | ({"done": ",".join(sorted(HELD.learned))} if HELD.learned else {})
if st.query_params.to_dict() != parameters:
    st.query_params.from_dict(parameters)
HELD["learn-written"] = parameters.get("lesson")
