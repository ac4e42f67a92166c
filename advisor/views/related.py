"""What belongs together in the library: a part of memory and the causes about it, a cause and its cures, and what it is mistaken for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import streamlit as st

from advisor import knowledge
from advisor.render import words
from advisor.rules.engine import all_rules
from advisor.views.causes import has_page, library_link
from advisor.views.words import plain

OF_NO_PART = frozenset({"not-memory", "capacity"})  # about the text, or about the whole of the card


@cache
def acts_on(technique: str) -> frozenset[str]:
    """The parts of memory that a technique changes, as its page says."""
    if not has_page("techniques", technique):
        return frozenset()
    front, _ = knowledge.page("techniques", technique)
    return frozenset(front.get("acts_on") or ())


@cache
def causes_of_part(part: str) -> tuple[str, ...]:
    """The causes about a part: those whose first remedy acts on it, in the order of the tiers."""
    return tuple(r.id for r in all_rules() if r.id not in OF_NO_PART and r.remedies and part in acts_on(r.remedies[0]))


@cache
def cures(cause: str) -> tuple[str, ...]:
    """The techniques that answer a cause, best first."""
    return tuple(name for r in all_rules() if r.id == cause for name in r.remedies if has_page("techniques", name))


@cache
def cured_by(technique: str) -> tuple[str, ...]:
    """The causes that a technique answers."""
    return tuple(r.id for r in all_rules() if technique in r.remedies and has_page("causes", r.id))


def show_causes_of(part: str, key: str) -> None:
    """The causes about a part, each a link, shown when they are asked for."""
    found = causes_of_part(part)
    if not found:
        return
    opened = st.popover(f"Causes that are about this part ({len(found)})", icon=":material/troubleshoot:", on_change="rerun", key=f"{key}:causes:{part}")
    if opened.open:
        with opened:
            for name in found:
                library_link("causes", name, plain(words.title("causes", name)))


def show_related(kind: str, name: str, front: Mapping[str, Any], go: Callable[[str, str], None]) -> None:
    """Under a cause its cures, and how to tell it from what looks like it; under a technique the causes that it answers. ``go``: to another page."""
    if kind == "causes":
        _section("What cures it, best first", "techniques", dict.fromkeys(cures(name), ""), go)
        _section("Easily taken for another", "causes", {other["cause"]: other["tell"] for other in front.get("looks_like") or ()}, go)
    elif kind == "techniques":
        _section("Causes that it answers", "causes", dict.fromkeys(cured_by(name), ""), go)


def _section(title: str, kind: str, found: Mapping[str, str], go: Callable[[str, str], None]) -> None:
    """Pages of the library, one a line; ``found``: by name, when it is rather that one."""
    if not found:
        return
    st.subheader(title)
    with st.container(gap="xsmall"):
        for name, tell in found.items():
            st.button(plain(words.title(kind, name)), key=f"related:{kind}:{name}", on_click=go, args=(kind, name), type="tertiary", icon=":material/article:")
            if tell:
                st.caption(f"It is rather this where {plain(tell)}.")
