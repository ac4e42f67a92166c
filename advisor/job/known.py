"""Which fields a job file has, and of which types."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from advisor.job.place import OtherGpu
from advisor.job.section import Section


@cache
def fields() -> tuple[str, ...]:
    """Every dotted path of the job file, sections left out."""
    return tuple(_paths(_job(), ""))


def _paths(kind: type[Section], prefix: str) -> Iterator[str]:
    for name, type_ in types_of(kind).items():
        inner = section_of(type_)
        if inner is not None and inner is not OtherGpu:
            yield from _paths(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@cache
def types_of(kind: type[Section]) -> dict[str, Any]:
    """The type of each field of a section, with its bounds."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def opened(type_: Any) -> tuple[Any, ...]:
    """The alternatives of a type, without their bounds: ``int``, a ``Literal``, a section, ``NoneType``."""
    origin = get_origin(type_)
    if origin is Annotated:
        return opened(get_args(type_)[0])
    if origin in (Union, types.UnionType):
        return tuple(a for part in get_args(type_) for a in opened(part))
    return (type_,)


def choices(type_: Any) -> tuple[Any, ...]:
    """The values of a closed list; nothing where any other is taken too."""
    return tuple(value for a in opened(type_) if get_origin(a) is Literal for value in get_args(a))


def section_of(type_: Any) -> type[Section] | None:
    """The section that a field holds; ``None`` where it holds a value."""
    return next((a for a in opened(type_) if isinstance(a, type) and issubclass(a, Section)), None)


def section_in_words(path: str) -> str | None:
    """That a path is a section, and which fields it has; ``None`` where it is none."""
    within = [known for known in fields() if known.startswith(f"{path}.")]
    return f"{path!r} is a section; its fields are {', '.join(within)}" if within else None


def nearest_field(path: str) -> str | None:
    """The known job field nearest to a mistyped one."""
    known = list(fields()) + sorted({p.split(".")[0] for p in fields()})
    found = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if found:
        return found[0]
    leaf = path.rpartition(".")[2]
    by_leaf = {p.rpartition(".")[2]: p for p in reversed(known)}
    close = difflib.get_close_matches(leaf, list(by_leaf), n=1, cutoff=0.75)
    return by_leaf[close[0]] if close else None


def _job() -> type[Section]:
    from advisor.job.whole import Job  # the whole needs this module to validate

    return Job
