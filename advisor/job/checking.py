"""Validation of a job, or of one of its sections."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import ValidationError, convert

from advisor.job.known import choices, opened, section_of, types_of
from advisor.job.mistakes import SAID, mistakes
from advisor.job.section import Section

_T = TypeVar("_T", bound=Section)
MOST = 4  # mistakes that one error names
DEEPEST = 8  # levels of a job file that this module walks; sections end at the third, lists of pairs at the fifth
_ANSWERS = {"yes": True, "y": True, "on": True, "t": True, "no": False, "n": False, "off": False, "f": False}


class JobError(ValueError):
    """A job that cannot be read; the message says which key or value, and what would be right."""


def validated(kind: type[_T], data: Mapping[str, Any], prefix: str) -> _T:
    """The section (or job) of a mapping. Numbers may be written as texts; sections that are made already are taken as they are.

    Raises:
        JobError: in words, for the first few of what is wrong.
    """
    with suppress(ValidationError):
        return convert(data, kind, strict=False)
    try:
        return convert(_answers(kind, _plain(data)), kind, strict=False)
    except ValidationError as error:
        found = [fault for _, fault in zip(range(MOST), mistakes(kind, data, prefix), strict=False)]
        raise JobError("; ".join(found) or SAID.sub(r"\g<what>", str(error))) from None


def _plain(value: Any, depth: int = 0) -> Any:
    """The same with numbers and texts of live objects (numpy's, torch's) as Python's own; what lies deeper than any section is left as it is."""
    if isinstance(value, Section) or depth > DEEPEST:
        return value
    if isinstance(value, Mapping):
        return {_plain(key, DEEPEST): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner, depth + 1) for inner in value]
    for type_ in (bool, str, int, float):
        if isinstance(value, type_):
            return type_(value)
    return value.item() if callable(getattr(value, "item", None)) else value


def _answers(kind: type[Section], data: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same, read as YAML 1.1 would without quotes (``yes``, ``off``) where only a truth value is taken; a section with nothing in it is empty."""
    out = dict(data)
    for name, type_ in types_of(kind).items():
        value, inner = out.get(name), section_of(type_)
        if inner is not None and isinstance(value, Mapping):
            out[name] = _answers(inner, value)
        elif inner is not None and name in out and value is None and type(None) not in opened(type_):
            out[name] = {}
        elif isinstance(value, str) and bool in opened(type_) and str not in opened(type_):
            out[name] = _ANSWERS.get(value.lower(), value)
        elif isinstance(value, float) and value.is_integer() and choices(type_):
            out[name] = int(value)  # version: 1.0
    return out
