"""No two lines of a plan disagree: where a later step sets a key once more, the earlier step shows the last value already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from advisor.reading.pattern import pattern
from advisor.report import Step

_KEY = pattern(r"^(\s*)(?:--)?([A-Za-z_][\w.-]*)(?:\s*[:=]|\s|$)(?!=)")
CODE = frozenset({"script", "shell", "docker"})  # lines of a program are not keys


def agreeing(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with one line for each key of a file, the last one's."""
    last: dict[tuple[str, str], str] = {}
    for step in steps:
        for layer, lines in step.settings.items():
            last.update({(layer, path): line for path, line in paths(layer, lines)})
    return tuple(replace(step, settings=_with(step.settings, last)) for step in steps)


def _with(settings: Mapping[str, tuple[str, ...]], last: Mapping[tuple[str, str], str]) -> Mapping[str, tuple[str, ...]]:
    out: dict[str, tuple[str, ...]] = {}
    for layer, lines in settings.items():
        known = {line: path for path, line in paths(layer, lines)}
        out[layer] = tuple(last[layer, known[line]] if line in known else line for line in lines)
    return out


def paths(layer: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """``(dotted key, line)`` of every line that sets a value; parents by their indentation, sections of TOML by their header."""
    if layer in CODE:
        return
    parents: list[tuple[int, str]] = []
    section = ""
    for line in lines:
        if line.startswith("[") and line.endswith("]"):
            section, parents = line, []
            continue
        found = _KEY.match(line)
        if found is None or "(" in line or line.startswith("{"):
            continue
        indent, key = len(found.group(1)), found.group(2)
        parents = [p for p in parents if p[0] < indent]
        path = ".".join([section, *(name for _, name in parents), key])
        if line.rstrip().endswith(":"):
            parents.append((indent, key))
        else:
            yield path, line
