"""Validation whose errors name the key or value that was wrong and the nearest that is known."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from advisor.job.place import OtherGpu

_T = TypeVar("_T", bound=BaseModel)


class JobError(ValueError):
    """A job that cannot be read; the message says which key or value, and what would be right."""


@cache
def fields() -> tuple[str, ...]:
    """Every dotted path of the job file, sections left out."""
    return tuple(_paths(_job(), ""))


def _paths(kind: type[BaseModel], prefix: str) -> list[str]:
    out: list[str] = []
    for name, info in kind.model_fields.items():
        path = f"{prefix}{name}"
        inner = [c for c in (info.annotation, *getattr(info.annotation, "__args__", ())) if isinstance(c, type) and issubclass(c, BaseModel)]
        if inner and inner[0] is not OtherGpu:
            out.extend(_paths(inner[0], f"{path}."))
        else:
            out.append(path)
    return out


def validated(kind: type[_T], data: dict[str, Any], prefix: str) -> _T:
    """The section (or job) of a mapping.

    Raises:
        JobError: in words, for the first few of what is wrong.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise JobError("; ".join(_in_words(item, prefix) for item in error.errors(include_url=False)[:4])) from None


def _in_words(item: Any, prefix: str) -> str:
    location = ".".join(str(part) for part in (*([prefix] if prefix else []), *item["loc"]))
    shown = repr(item.get("input"))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    if item["type"] == "extra_forbidden":
        near = nearest_field(location)
        return f"unknown key {location!r}" + (f"; did you mean {near!r}?" if near else "")
    if item["type"] == "model_type" and (says := section_in_words(location)) is not None:
        return f"{says} (read {shown})"
    said = item["msg"].removeprefix("Value error, ")
    return f"{location}: {said[0].lower()}{said[1:]} (read {shown})"


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


def _job() -> type[BaseModel]:
    from advisor.job.whole import Job  # the whole needs this module to validate

    return Job
