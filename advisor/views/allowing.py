"""What the plan may do: its reader's limits, folded away, kept in the session and in the link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import streamlit as st

from advisor.planner.constraints import Constraints
from advisor.render import words
from advisor.share import ALLOW, allowed_of, parameters_of
from advisor.techniques import all_techniques
from advisor.units import GIB, gib, show

SWITCHES = {
    "keep_full_training": ("Keep full fine-tuning", "No adapters and no low-rank gradients in its place."),
    "keep_exact": ("Keep the numbers exact", "Only what gives the same numbers up to rounding."),
    "no_new_dependency": ("Bring no new library", "Nothing that a plain install of the trainer does not bring."),
    "keep_hardware": ("Keep the cards", "No other cards and no more of them."),
}
MOST = 20
UNREAD = f"{ALLOW}: not what a plan may do"


def limits(page: str = "diagnose") -> tuple[Constraints, int | None]:
    """What the reader allows now, and the bytes to leave free (``None``: the estimate's own error)."""
    held = st.session_state
    room = held.get(_key(page, "margin"))
    return Constraints(
        most_changes=held.get(_key(page, "most_changes")),
        exclude=frozenset(held.get(_key(page, "exclude")) or ()),
        **{name: bool(held.get(_key(page, name))) for name in SWITCHES},
    ), None if room is None else round(room * GIB)


def take(query: str | Mapping[str, str], page: str = "diagnose") -> tuple[str, ...]:
    """Set what a link says, and nothing else; what it says and cannot be read is named."""
    said = allowed_of(query)
    allow, margin = said or (Constraints(), None)
    held = st.session_state
    for name in SWITCHES:
        held[_key(page, name)] = getattr(allow, name)
    held[_key(page, "most_changes")], held[_key(page, "exclude")] = allow.most_changes, sorted(allow.exclude)
    held[_key(page, "margin")] = None if margin is None else gib(margin, 3)
    return (UNREAD,) if said is None and ALLOW in parameters_of(query) else ()


def show_limits(remake: Callable[[], None] | None = None, switches: Sequence[str] = tuple(SWITCHES), page: str = "diagnose", column: bool = False) -> None:
    """Boxes and fields, folded away, and in a line above them what is limited. ``remake``: what to do when one changes; ``column``: one below the other."""
    with st.container():  # always there: what stands below keeps its place, and an open part stays open
        if said := in_words(*limits(page), switches):
            st.caption(f":material/rule: The plan keeps to your limits: {said}.")
    with st.expander("What the plan may do", icon=":material/rule:", key=_key(page, "box")):
        with st.container(horizontal=not column):
            for name in switches:
                says, why = SWITCHES[name]
                st.checkbox(says, key=_key(page, name), help=why, on_change=remake, persist_state="session")
        with st.container(horizontal=not column):
            st.number_input(
                "At most so many changes", 1, MOST, None, 1, key=_key(page, "most_changes"), on_change=remake, placeholder="no limit", persist_state="session"
            )
            st.number_input(
                "Room to leave (GiB)", 0.0, 1024.0, None, 0.5, key=_key(page, "margin"), on_change=remake, placeholder="automatic",
                help="On each card, beyond what the plan needs. Automatic: the estimate's own error.", persist_state="session",
            )  # fmt: skip
        st.multiselect(
            "Never these changes",
            sorted(all_techniques(), key=_title),
            format_func=_title,
            key=_key(page, "exclude"),
            on_change=remake,
            placeholder="none is out of the question",
            persist_state="session",
        )


def in_words(allow: Constraints, margin: int | None, switches: Sequence[str] = tuple(SWITCHES)) -> str:
    """``keep the cards; at most 2 changes``; empty where nothing is limited."""
    said = [SWITCHES[name][0].lower() for name in switches if getattr(allow, name)]
    if allow.most_changes is not None:
        said.append(f"at most {allow.most_changes} change{'s' if allow.most_changes > 1 else ''}")
    if margin is not None:
        said.append(f"{show(margin)} left free")
    if allow.exclude:
        said.append("without " + ", ".join(sorted(_title(name) for name in allow.exclude)))
    return "; ".join(said)


def _title(name: str) -> str:
    return words.title("techniques", name)


def _key(page: str, name: str) -> str:
    return f"allow:{page}:{name}"
