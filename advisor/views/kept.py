"""What a session has worked out, kept while nothing that it depends on changes: a page runs again for every click anywhere on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import streamlit as st

from advisor.run import Run

T = TypeVar("T")
KEPT = "kept"  # in the session: {name: [(what it depends on, result)]}, the latest first
MOST = 2  # results of one name: of the run and of the changed run, or of what the back button returns to


def kept(name: str, depends: tuple[Any, ...], make: Callable[[], T]) -> T:
    """``make()``, or what it gave the last time with the same ``depends``: the same objects, or equal texts, numbers and tuples.

    In this session only: what one reader pasted is never found by another.
    """
    found: list[tuple[tuple[Any, ...], T]] = st.session_state.setdefault(KEPT, {}).setdefault(name, [])
    for at, (known, result) in enumerate(found):
        if len(known) == len(depends) and all(map(_same, known, depends)):
            if at:
                found.insert(0, found.pop(at))
            return result
    result = make()
    found.insert(0, (depends, result))
    del found[MOST:]
    return result


def _same(one: Any, other: Any) -> bool:
    """The same object; or an equal value, where comparing is cheap."""
    return one is other or (isinstance(one, (str, int, float, tuple)) and type(one) is type(other) and one == other)


def settings(run: Run) -> str:
    """All that an estimate of a run without a failure depends on, as text: what is stated, and what was filled in. Streamlit keeps its hash only."""
    return json.dumps([run.stated.to_dict(), run.job.to_dict()], default=str)
