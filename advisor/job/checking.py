"""Validation whose errors name the key or value that was wrong and the nearest that is known."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import ValidationError, convert

from advisor.job.place import OtherGpu
from advisor.job.section import Section

_T = TypeVar("_T", bound=Section)
MOST = 4  # mistakes that one error names
_BOUND = {">=": "greater than or equal to", ">": "greater than", "<=": "less than or equal to", "<": "less than"}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "array": "a list", "object": "a mapping"}
_SAID = re.compile(r"^(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<at>[^`]*)`)?$", re.DOTALL)


class JobError(ValueError):
    """A job that cannot be read; the message says which key or value, and what would be right."""


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


def section_of(type_: Any) -> type[Section] | None:
    """The section that a field holds; ``None`` where it holds a value."""
    return next((a for a in opened(type_) if isinstance(a, type) and issubclass(a, Section)), None)


def validated(kind: type[_T], data: Mapping[str, Any], prefix: str) -> _T:
    """The section (or job) of a mapping. Numbers may be written as texts; sections that are made already are taken as they are.

    Raises:
        JobError: in words, for the first few of what is wrong.
    """
    with suppress(ValidationError):
        return convert(data, kind, strict=False)
    try:
        return convert(_plain(data), kind, strict=False)
    except ValidationError as error:
        found = [fault for _, fault in zip(range(MOST), _faults(kind, data, prefix), strict=False)]
        raise JobError("; ".join(found) or _SAID.sub(r"\g<what>", str(error))) from None


def _plain(value: Any) -> Any:
    """The same with numbers and texts of live objects (numpy's, torch's) as Python's own."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    for type_ in (bool, str, int, float):
        if isinstance(value, type_):
            return type_(value)
    return value.item() if callable(getattr(value, "item", None)) else value


def _faults(kind: type[Section], data: Mapping[Any, Any], prefix: str) -> Iterator[str]:
    known = types_of(kind)
    for key, value in data.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if key not in known:
            near = nearest_field(path)
            yield f"unknown key {path!r}" + (f"; did you mean {near!r}?" if near else "")
            continue
        inner = section_of(known[key])
        if inner is not None and isinstance(value, Mapping):
            yield from _faults(inner, value, path)
            continue
        try:
            convert(value, known[key], strict=False)
        except ValidationError as error:
            yield _in_words(str(error), known[key], value, path)
    required = [name for name in kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)] if name not in data]
    if kind is OtherGpu:
        yield from (f"{prefix}.{name}: a value is needed here (read {_shown(data)})" for name in required)


def _in_words(error: str, type_: Any, value: Any, path: str) -> str:
    if section_of(type_) is not None and (says := section_in_words(path)) is not None:
        return f"{says} (read {_shown(value)})"
    said = _SAID.match(error)
    assert said is not None  # the pattern matches any text
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", said["at"] or ""):
        value, path = _inside(value, path, index or name)
    if isinstance(value, bool) and re.match(r"Expected `(?:int|float)\b", said["what"]):
        return f"{path}: a number is expected, not true or false (read {value!r})"
    endless = isinstance(value, float) and not isfinite(value)
    return f"{path}: input should be {'a finite number' if endless else _expected(said['what'], type_)} (read {_shown(value)})"


def _inside(value: Any, path: str, step: str) -> tuple[Any, str]:
    """The item that an error points to; of a mapping it names no key, so the first value that is no plain one is meant."""
    if isinstance(value, Mapping):
        key = next((k for k, v in value.items() if not isinstance(v, str)), None)
        return (value[key], f"{path}.{key}") if key is not None else (value, path)
    if step.isdigit() and isinstance(value, list | tuple) and int(step) < len(value):
        return value[int(step)], f"{path}.{step}"
    return value, path


def _expected(what: str, type_: Any) -> str:
    if bound := re.search(r"`\w+` (>=|>|<=|<) (\S+)", what):
        return f"{_BOUND[bound[1]]} {float(bound[2]):g}" if "." in bound[2] else f"{_BOUND[bound[1]]} {bound[2]}"
    if length := re.search(r"`(\w+)` of length (<=|>=)? ?(\d+)", what):
        few = {"<=": "at most ", ">=": "at least ", None: ""}[length[2]]
        return f"{_KINDS.get(length[1], length[1])} of {few}{length[3]} {'characters' if length[1] == 'str' else 'items'}"
    choices = [repr(c) for a in opened(type_) if get_origin(a) is Literal for c in get_args(a)]
    others = [_KINDS[a.__name__] for a in opened(type_) if isinstance(a, type) and a.__name__ in _KINDS]
    others += ["a list" for a in opened(type_) if get_origin(a) is tuple]
    others += ["a mapping" for a in opened(type_) if isinstance(get_origin(a), type) and issubclass(get_origin(a), Mapping)]
    if (held := section_of(type_)) is not None:
        others.append(f"a mapping of {' and '.join(held.__struct_fields__)}")
    if inner := re.match(r"Expected `(\w+)`, got", what):
        others, choices = [_KINDS.get(inner[1], inner[1])], []
    named = [*choices, *others]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} or {named[-1]}" if named else what


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


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
