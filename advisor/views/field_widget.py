"""A widget for a job field, made from the field's own type: choices as a list, numbers within their bounds, yes or no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin

import streamlit as st

from advisor.job import Job, Section
from advisor.job.known import opened, section_of, types_of
from advisor.render import words

NOT_KNOWN = "I don't know"
GROUPED = 100_000  # a box holds plain digits; from here on nobody counts them


@cache
def choices(path: str) -> tuple[str, ...]:
    """The values of a field that has a closed list of them; else nothing."""
    return tuple(str(v) for a in _annotations(path) if get_origin(a) is Literal for v in get_args(a))


@cache
def kind(path: str) -> str:
    """``choice``, ``flag``, ``count``, ``number``, ``text``."""
    found = _annotations(path)
    if any(get_origin(a) is Literal for a in found):
        return "choice"
    for type_, name in ((bool, "flag"), (int, "count"), (float, "number")):
        if type_ in found:
            return name
    return "text"


def _annotations(path: str) -> tuple[Any, ...]:
    kind: type[Section] = Job
    *sections, leaf = path.split(".")
    for name in sections:
        inner = section_of(types_of(kind)[name])
        assert inner is not None, path
        kind = inner
    return opened(types_of(kind)[leaf])


def ask(
    path: str,
    value: Any,
    key: str,
    changed: Callable[[str, str], None],
    *,
    options: Sequence[Any] | None = None,
    unknown: bool = False,
    formatted: Callable[[Any], str] | None = None,
) -> None:
    """Show the field with its present value; ``changed(path, key)`` is called when the reader moves it.

    ``options`` narrows a field to some values (the present one is added); ``unknown`` adds "I don't know"; ``formatted``
    writes an option for people.
    """
    name, help_, shown = words.field(path), words.field_help(path), formatted or _shown
    if options is not None:
        listed = list(options) if value is None or value in options else sorted({*options, value}, key=_order)
    elif kind(path) == "choice":
        listed = list(choices(path))
    elif kind(path) == "flag":
        listed = [True, False]
    else:
        listed = []
    call: dict[str, Any] = {"key": key, "help": help_, "on_change": changed, "args": (path, key)}
    if listed:
        if unknown:
            listed = [*listed, NOT_KNOWN]
        st.session_state[key] = value if value in listed else NOT_KNOWN if unknown else listed[0]
        if len(listed) <= 4:
            st.segmented_control(name, listed, format_func=shown, required=True, **call)
        elif all(isinstance(v, int) for v in listed):
            st.select_slider(name, listed, format_func=shown, **call)
        else:
            st.selectbox(name, listed, format_func=shown, accept_new_options=kind(path) == "text", **call)
    elif kind(path) in ("count", "number"):
        whole = kind(path) == "count"
        st.session_state[key] = None if value is None else int(value) if whole else float(value)
        bounds: dict[str, Any] = {"min_value": 1, "step": 1} if whole else {"min_value": 0.0, "step": 0.05}
        st.number_input(name, placeholder="not known", **bounds, **call)
        if isinstance(value, int) and value >= GROUPED:
            st.caption(f"{value:,}")
    else:
        st.session_state[key] = "" if value is None else words.value(value)
        st.text_input(name, placeholder="not known", **call)


def _order(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), value)


def _shown(value: Any) -> str:
    return words.value(value)
