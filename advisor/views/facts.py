"""What was understood and from which line, what is assumed (and can be corrected), and what was not understood."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from advisor import cards, team
from advisor.architecture.presets import names
from advisor.evidence import Fact
from advisor.knowledge import KnowledgeError
from advisor.render import words
from advisor.report import Question, Report
from advisor.units import show
from advisor.views.field_widget import NOT_KNOWN, ask, kind
from advisor.views.words import plain, table

CHIPS_SHOWN = 12
LEFT_OPEN = "question-left-open"  # the text of a question that the reader cannot answer
PUT_RIGHT = "an assumption was put right"  # in this run of the page, which then has to run as a whole
SIZES = (
    ("requested_bytes", "Asked for"),
    ("allocated_bytes", "Allocated by PyTorch"),
    ("reserved_unallocated_bytes", "Reserved, not in use"),
    ("free_bytes", "Free on the card"),
    ("capacity_bytes", "The card's total"),
)


def understood(report: Report) -> None:
    """Facts with the place they were read at, and the counters of the error."""
    failure = report.evidence.failure
    count = len(report.read) + (1 if failure else 0)
    with st.expander(f"What was understood ({count})", icon=":material/fact_check:"):
        if failure is not None:
            figures = [(label, show(size)) for name, label in SIZES if (size := getattr(failure, name)) is not None]
            rank = f", rank {failure.rank}" if failure.rank is not None else ""
            st.markdown(f"The error ({plain(failure.where)}{rank}):")
            if figures:
                st.markdown(table(("Counter", "Size"), figures, right=(1,)))
        if report.read:
            st.markdown(table(("Setting", "Value", "Read at"), [_row(f) for f in report.read]))
        for conflict in report.conflicts:
            st.markdown(
                f":material/warning: {words.differing(conflict, words.field(conflict.field).lower())}: {plain(words.value(conflict.kept.value))} "
                f"({plain(conflict.kept.where or '')}) is used, {plain(words.value(conflict.other.value))} ({plain(conflict.other.where or '')}) is not."
            )
        if not count:
            st.markdown("Nothing that names a setting or a counter.")
    if report.not_understood:
        with st.expander(f"Not counted ({len(report.not_understood)})", icon=":material/help:"):
            rows = [(plain(n.where), plain(n.text[:200]), plain(n.why)) for n in report.not_understood[:60]]
            st.markdown(table(("Where", "Text", "Why"), rows))


def _row(fact: Fact) -> tuple[str, str, str]:
    return plain(words.field(fact.field)), plain(words.value(fact.value)), plain(fact.where or words.FACT_KINDS[fact.kind])


def assumed(report: Report, changed: Callable[[str, str], None]) -> None:
    """Each assumption as a chip that opens: why, and a widget that states the true value."""
    facts = [f for f in report.assumed if kind(f.field) != "text"] + [
        f for f in report.assumed if kind(f.field) == "text" and not isinstance(f.value, (dict, list, tuple))
    ]
    if not facts:
        return
    st.header("What was assumed")
    st.caption("Open what is wrong and put it right: the report is made again with it.")
    _chips(facts, changed)


@st.fragment
def _chips(facts: Sequence[Fact], changed: Callable[[str, str], None]) -> None:
    """Opening one runs only this again, for its widget; a value put right runs the page."""
    if st.session_state.pop(PUT_RIGHT, False):
        st.rerun()

    def put_right(path: str, key: str) -> None:
        st.session_state[PUT_RIGHT] = True
        changed(path, key)

    with st.container(horizontal=True):
        for fact in facts[:CHIPS_SHOWN]:
            _chip(fact, put_right)
    if len(facts) > CHIPS_SHOWN:
        with st.expander(f"{len(facts) - CHIPS_SHOWN} more"), st.container(horizontal=True):
            for fact in facts[CHIPS_SHOWN:]:
                _chip(fact, put_right)


def _chip(fact: Fact, changed: Callable[[str, str], None]) -> None:
    name = f"{words.field(fact.field)}: {plain(words.value(fact.value))}"
    chip = st.popover(name, width="content", key=f"chip:{fact.field}", on_change="rerun", help=words.field_help(fact.field))
    if not chip.open:  # a dozen widgets take time to send: only the one that is looked at
        return
    with chip:
        why = fact.why or (f"the default of {fact.where}" if fact.kind == "default" and fact.where else fact.where) or "no text says so"
        st.caption(f"{words.FACT_KINDS[fact.kind].capitalize()}: {plain(why)}")
        ask(fact.field, fact.value, f"fact:{fact.field}", changed)


def _card_name(id: object) -> str:
    card = cards.catalogue().get(str(id))
    return card.name if card else str(id)


def question(report: Report, changed: Callable[[str, str], None], seen: Callable[[str], None]) -> None:
    """The one unknown that moves the verdict most; "I don't know" is always an answer."""
    asked: Question | None = report.next_question
    if asked is None or st.session_state.get(LEFT_OPEN) == asked.text:
        return
    with st.container(border=True):
        moves = f" It moves the estimate by {show(asked.moves_bytes)}." if asked.moves_bytes else ""
        st.markdown(f":material/contact_support: **What would help most to know:** {plain(asked.text)}{moves}")
        if asked.answers:
            for answer in asked.answers:
                st.button(plain(answer.says), key=f"seen:{answer.mark}", on_click=seen, args=(answer.mark,), type="tertiary", icon=":material/check:")
            st.button(NOT_KNOWN, key="seen:unknown", type="tertiary", on_click=_leave_open, args=(asked.text,))
            return
        options, formatted = list(asked.options), None
        if asked.field == "hardware.gpu" and not options:
            options, formatted = list(cards.catalogue()), _card_name
        elif asked.field == "model.name" and not options:
            options = list(names())
        if kind(asked.field) in ("count", "number") and not options:
            ask(asked.field, None, f"ask:{asked.field}", changed)
            st.caption("Leave it empty if you don't know.")
        else:
            ask(asked.field, None, f"ask:{asked.field}", changed, options=options or None, unknown=True, formatted=formatted)


def _leave_open(text: str) -> None:
    st.session_state[LEFT_OPEN] = text


def follow_ups(report: Report, seen: Callable[[str], None]) -> None:
    """A second try tells the causes apart: what came of it, as one click each."""
    if not report.follow_ups:
        return
    with st.container(border=True):
        st.markdown(":material/science: **Tried something since? Say what happened,** and the causes are weighed again. What tells most stands first.")
        for said in report.follow_ups:  # one below the other: beside each other a phone would cut their words off
            st.button(plain(said.says), key=f"seen:{said.mark}", on_click=seen, args=(said.mark,), type="tertiary", icon=":material/add_comment:")


def broken(report: Report) -> None:
    """The team's house rules that this run goes against."""
    if report.run is None:
        return
    try:
        found = team.broken(report.run)
    except KnowledgeError as error:
        st.warning(plain(error), title="The house rules cannot be read", icon=":material/info:")
        return
    if found:
        st.header("Your team's house rules")
        st.markdown("\n".join(f"- {words.field(field)}: **{plain(words.value(value))}**. {plain(says)}" for field, value, says in found))
