"""Learn: eight short lessons, and six failures for a first week. Predict before the figure is shown; the engine is the judge."""

import streamlit as st

from advisor import lessons
from advisor.knowledge import KnowledgeError
from advisor.views.address import stayed
from advisor.views.lesson import show_failure, show_prediction, show_recorded
from advisor.views.words import plain

HELD = st.session_state  # learned: steps done ("1" a prediction, "1f" a failure of lesson 1, "w1" one of the first week); learn-lesson: what is open
NAMES = lessons.names()
NUMBERS = {name: str(number) for number, name in enumerate(NAMES, 1)}
WEEK = {f"week-{number}": failure for number, failure in enumerate(lessons.first_week(), 1)}
STEPS = {step for number in NUMBERS.values() for step in (number, f"{number}f")} | {f"w{name[5:]}" for name in WEEK}
ICONS = (":material/radio_button_unchecked:", ":material/contrast:", ":material/check_circle:")


def go(name: str | None) -> None:
    HELD["learn-lesson"] = name


def done(step: str) -> None:
    HELD.learned = HELD.learned | {step}


still = stayed("learn")
if "learned" not in HELD or ("done" in st.query_params and "learn-written" not in HELD):
    HELD.learned = frozenset(st.query_params.get("done", "").split(",")) & STEPS
    wanted = st.query_params.get("lesson")
    HELD["learn-lesson"] = wanted if wanted in (*NAMES, *WEEK) else None
elif st.query_params.get("lesson") != HELD.get("learn-written"):
    wanted = st.query_params.get("lesson")  # a link, or the browser's back button
    if wanted in (*NAMES, *WEEK) or (wanted is None and still):
        HELD["learn-lesson"] = wanted


def title(name: str) -> str:
    try:
        return lessons.lesson(name).title
    except KnowledgeError as error:
        return f"cannot be read: {error}"


def overview() -> None:
    st.markdown("A few minutes each: predict a figure, see what the engine says, then find out why a run died.")
    st.progress(len(HELD.learned) / len(STEPS), text=f"{len(HELD.learned)} of {len(STEPS)} steps done. The address keeps your progress.")
    st.header("Your first week: six failures in thirty minutes")
    with st.grid(3, min_column_width=250):
        for name, asked in WEEK.items():
            state = 2 if f"w{name[5:]}" in HELD.learned else 0
            with st.container(border=True, height="stretch"):
                st.markdown(asked.text)
                st.button(f"Failure {name[5:]}", key=f"learn-open:{name}", icon=ICONS[state], on_click=go, args=(name,), help=("not done", "", "done")[state])
    st.header("Lessons")
    for name in NAMES:
        number = NUMBERS[name]
        both = sum(step in HELD.learned for step in (number, f"{number}f"))
        says = ("", " · half done", " · done")[both]
        st.button(f"{number}. {plain(title(name))}{says}", key=f"learn-open:{name}", icon=ICONS[both], on_click=go, args=(name,), type="tertiary")
    st.caption("A team adds failures and house rules of its own as files: a folder named by ADVISOR_TEAM, with lessons in the form of knowledge/lessons/.")


def onward(names: list[str], name: str, label: str) -> None:
    if later := names[names.index(name) + 1 :]:
        st.button(f"Next: {plain(label.format(later[0][5:]) if label else title(later[0]))}", icon=":material/arrow_forward:", on_click=go, args=(later[0],))


def show_lesson(name: str) -> None:
    st.button("All lessons", icon=":material/arrow_back:", on_click=go, args=(None,))
    if name in WEEK:
        st.header(f"Failure {name[5:]} of {len(WEEK)}")
        show_failure(name, WEEK[name], f"w{name[5:]}", done)
        onward(list(WEEK), name, "failure {}")
        return
    try:
        lesson = lessons.lesson(name)
    except KnowledgeError as error:
        st.warning(plain(error), title="This lesson cannot be read", icon=":material/info:")
        return
    number = NUMBERS[name]
    st.header(f"{number}. {plain(lesson.title)}")
    st.markdown(lesson.body)
    show_prediction(name, lesson, number, done)
    if lesson.step and HELD.get(f"learn-told:{name}") is not None:
        show_recorded(name, lesson.step)
    show_failure(name, lesson.failure, f"{number}f", done, ready=HELD.get(f"learn-told:{name}") is not None)
    onward(list(NAMES), name, "")


st.title("Learn")
current = HELD.get("learn-lesson")
if current in (*NAMES, *WEEK):
    show_lesson(current)
else:
    current = None
    overview()
parameters = ({"lesson": current} if current else {}) | ({"done": ",".join(sorted(HELD.learned))} if HELD.learned else {})
if st.query_params.to_dict() != parameters:
    st.query_params.from_dict(parameters)
HELD["learn-written"] = parameters.get("lesson")
