"""Keys and values as lines of a framework's own files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from advisor.frameworks.table import Entry, Table

Pair = tuple["Entry", str, Any]


def render(table: Table, pairs: Sequence[Pair]) -> list[str]:
    """The lines, in the table's syntax (an entry may have its own: an environment variable, a launcher's flag)."""
    out: list[str] = []
    for syntax in dict.fromkeys(entry.syntax or table.syntax for entry, _, _ in pairs):
        out += _WRITERS[syntax](table, [p for p in pairs if (p[0].syntax or table.syntax) == syntax])
    return out


def _python(table: Table, pairs: Sequence[Pair]) -> list[str]:
    """``key=value`` for the table's own config; ``LoraConfig(..., r=8)`` where the key stands in another call."""
    own: dict[str, Any] = {}
    other: dict[str, dict[str, Any]] = {}
    for entry, key, raw in pairs:
        scope = entry.scopes[0] if entry.scopes else ""
        plain = not scope or (scope == (table.scopes[0] if table.scopes else "") and not (table.inherits and "." in scope))  # a loader beside a config
        _put(own if plain else other.setdefault(scope, {}), key.split("."), raw)
    single = table.scopes[0] if table.framework is None and table.scopes else ""
    if single and own:
        other, own = {single: own, **other}, {}
    out = [f"{key}={value!r}" for key, value in own.items()]
    return out + [f"{scope}(..., " + ", ".join(f"{k}={v!r}" for k, v in content.items()) + ")" for scope, content in other.items()]


def _yaml(_table: Table, pairs: Sequence[Pair]) -> list[str]:
    return yaml.safe_dump(_nested(pairs), sort_keys=False, allow_unicode=True, width=1000).splitlines()


def _json(_table: Table, pairs: Sequence[Pair]) -> list[str]:
    return [json.dumps(_nested(pairs))]


def _toml(_table: Table, pairs: Sequence[Pair]) -> list[str]:
    sections: dict[str, list[str]] = {}
    for _, key, raw in pairs:
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(raw)}")
    return [line for section, content in sections.items() for line in ([f"[{section}]"] if section else []) + content]


EXPORT = "export "
WITHOUT = "# without --"  # a switch that takes no value is turned off by leaving it out


def _flags(table: Table, pairs: Sequence[Pair]) -> list[str]:
    """``--key value``; a switch that is on stands alone."""
    out = []
    for _, key, raw in pairs:
        if isinstance(raw, list | tuple) and not raw:
            continue  # nothing is said by leaving the flag out
        if raw is False and table.switches == "bare":
            out.append(f"{WITHOUT}{key}")
            continue
        words = " ".join(str(item) for item in raw) if isinstance(raw, list | tuple) else str(raw)
        out.append(f"--{key}" if raw is True else f"--{key} {words.lower() if isinstance(raw, bool) else words}")
    return out


def _overrides(_table: Table, pairs: Sequence[Pair]) -> list[str]:
    return [f"{key}={json.dumps(list(raw)) if isinstance(raw, list | tuple) else raw}" for _, key, raw in pairs]


def _env(_table: Table, pairs: Sequence[Pair]) -> list[str]:
    return [f"{EXPORT}{key}={raw}" for _, key, raw in pairs]


def for_windows(lines: Sequence[str]) -> list[str]:
    """The lines with variables set as PowerShell does it, beside the same for cmd: ``export`` is neither's."""
    return [_set(*line.removeprefix(EXPORT).partition("=")[::2]) if line.startswith(EXPORT) else line for line in lines]


def _set(key: str, value: str) -> str:
    return f'$env:{key} = "{value}"  # PowerShell; in cmd: set {key}={value}'


def _nested(pairs: Sequence[Pair]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for _, key, raw in pairs:
        _put(out, key.split("."), list(raw) if isinstance(raw, tuple) else raw)
    return out


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


_WRITERS: Mapping[str, Callable[[Table, Sequence[Pair]], list[str]]] = {
    "python": _python,
    "yaml": _yaml,
    "json": _json,
    "toml": _toml,
    "flags": _flags,
    "overrides": _overrides,
    "env": _env,
    "none": lambda _table, _pairs: [],
}
