"""What is wrong with a job, in words: the key or value, what it takes, and the nearest key that is known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Literal, get_args, get_origin

from msgspec import ValidationError, convert

from advisor.job.hints import hint
from advisor.job.known import choices, fields, nearest_field, opened, section_in_words, section_of, types_of
from advisor.job.place import OtherGpu
from advisor.job.section import Section

_BOUND = {">=": "greater than or equal to", ">": "greater than", "<=": "less than or equal to", "<": "less than"}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "array": "a list", "object": "a mapping"}
SAID = re.compile(r"^(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<at>[^`]*)`)?$", re.DOTALL)


def mistakes(kind: type[Section], data: Mapping[Any, Any], prefix: str) -> Iterator[str]:
    """A sentence for each key and value of a section that is wrong; ``prefix``: the section's own path."""
    known = types_of(kind)
    for key, value in data.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if key not in known:
            if not prefix and path in fields():
                section, _, inside = path.partition(".")
                yield f"unknown key {path!r}: keys are nested, as in {section}: {{{inside}: ...}}"
                continue
            near = nearest_field(path)
            yield f"unknown key {path!r}" + (f"; did you mean {near!r}?" if near else "")
            continue
        inner = section_of(known[key])
        if inner is not None and isinstance(value, Mapping):
            yield from mistakes(inner, value, path)
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
    said = SAID.match(error)
    assert said is not None  # the pattern matches any text
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", said["at"] or ""):
        value, type_, path = _inside(value, type_, path, index or name)
    if isinstance(value, bool) and re.match(r"Expected `(?:int|float)\b", said["what"]):
        return f"{path}: a number is expected, not true or false (read {value!r})"
    endless = isinstance(value, float) and not isfinite(value)
    expected = "a finite number" if endless else _expected(said["what"], type_)
    quoted = ", in quotes" if expected == "a text" and isinstance(value, int | float) else ""  # torch: 2.10 unquoted is 2.1
    return f"{path}: input should be {expected}{quoted} (read {_shown(value)}){hint(path, value, choices(type_))}"


def _inside(value: Any, type_: Any, path: str, step: str) -> tuple[Any, Any, str]:
    """The item that an error points to, and its type; of a mapping the error names no key, so the first value that is no plain one is meant."""
    held = [a for part in opened(type_) for a in get_args(part) if get_origin(part) is not Literal and a is not Ellipsis]
    if isinstance(value, Mapping):
        key = next((k for k, v in value.items() if not isinstance(v, str)), None)
        return (value[key], held[-1] if held else type_, f"{path}.{key}") if key is not None else (value, type_, path)
    if step.isdigit() and isinstance(value, list | tuple) and int(step) < len(value):
        return value[int(step)], held[min(int(step), len(held) - 1)] if held else type_, f"{path}.{step}"
    return value, type_, path


def _expected(what: str, type_: Any) -> str:
    if bound := re.search(r"`\w+` (>=|>|<=|<) (\S+)", what):
        return f"{_BOUND[bound[1]]} {float(bound[2]):g}" if "." in bound[2] else f"{_BOUND[bound[1]]} {bound[2]}"
    if length := re.search(r"`(\w+)` of length (<=|>=)? ?(\d+)", what):
        few = {"<=": "at most ", ">=": "at least ", None: ""}[length[2]]
        return f"{_KINDS.get(length[1], length[1])} of {few}{length[3]} {'characters' if length[1] == 'str' else 'items'}"
    listed = [repr(c) for c in choices(type_)]
    others = [_KINDS[a.__name__] for a in opened(type_) if isinstance(a, type) and a.__name__ in _KINDS]
    others += ["a list" for a in opened(type_) if get_origin(a) is tuple]
    others += ["a mapping" for a in opened(type_) if isinstance(get_origin(a), type) and issubclass(get_origin(a), Mapping)]
    if (held := section_of(type_)) is not None:
        others.append(f"a mapping of {' and '.join(held.__struct_fields__)}")
    inner = re.match(r"Expected `(\w+)`, got", what)
    if inner is not None and not any(type(choice).__name__ == inner[1] for choice in choices(type_)):
        others, listed = [_KINDS.get(inner[1], inner[1])], []
    named = [*listed, *others]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} or {named[-1]}" if named else what


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of too many levels"
    return shown if len(shown) <= 80 else shown[:77] + "..."
