"""One value put into a text: where its key stands, or after a line of its kin; YAML, JSON, Python and command lines keep their form."""

from __future__ import annotations

import json
import re
from typing import Any

Path = tuple[str, ...]
_WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s\\()"']+)"""  # a value on a command line
_NO_SHELL = (".py", ".yaml", ".yml", ".json", ".jsonc", ".toml", ".ipynb")


def edited(text: str, spot: tuple[str, int, str, bool], key: Path, value: Any) -> str | None:
    """The text with ``key`` set to ``value`` at a spot (file name, line, key that stands there, whether that is the key itself); ``None``: no safe place."""
    name, number, read, itself = spot
    if (data := as_json(text)) is not None:
        return _set(data, key, value)
    lines = text.splitlines()
    if not 0 < number <= len(lines):
        return None
    line, leaf = lines[number - 1], (key[-1] if itself else read.rpartition(".")[2])
    if not name.endswith(_NO_SHELL) and (given := _given(line, read)) is not None:
        lines[number - 1 : number] = _commanded(line, given, ".".join(key), value, itself=itself)
    elif (m := re.search(rf"--{re.escape(leaf)}([ =])(\S+)", line)) is not None:
        new = f"--{key[-1]}{m[1]}{value}"
        lines[number - 1] = line[: m.start()] + (new + line[m.end() :] if itself else m[0] + " " + new + line[m.end() :])
    elif (m := re.search(rf"^(\s*)[\"']?{re.escape(leaf)}[\"']?:\s*([^#]*?)(\s+#.*)?$", line)) is not None and not name.endswith(".py"):
        if itself:
            lines[number - 1] = f"{line[: m.start(2)]}{_as_yaml(value)}{m[3] or ''}"
        elif len(key) == 1 and not m[1]:
            lines.append(f"{key[0]}: {_as_yaml(value)}")
        else:
            return None
    elif (m := re.search(rf"\b{re.escape(leaf)}(\s*=\s*)", line)) is not None and (end := _value_end(line, m.end())) is not None:
        if itself:
            lines[number - 1] = f"{line[: m.end()]}{value!r}{line[end:]}"
        elif line[end:].strip() == "," and line[: m.start()].strip() == "":
            lines.insert(number, f"{line[: m.start()]}{key[-1]}={value!r},")
        elif len(key) == 1 and line[end:].lstrip()[:1] in (",", ")"):
            lines[number - 1] = f"{line[:end]}, {key[0]}={value!r}{line[end:]}"
        else:
            return None
    else:
        return None
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def _given(line: str, key: str) -> re.Match[str] | None:
    """Where a command line gives a key: ``--key value``, a bare ``--key``, ``key=value`` of hydra."""
    spelled = re.escape(key)
    flag = re.search(rf"(?P<sign>(?<![\w\-])--){spelled}(?:(?P<joint>[ =])(?!-)(?P<value>{_WORD}))?(?=[\s\"')\\]|$)", line)
    return flag or re.search(rf"(?<![\w.\-])(?P<sign>[+~]{{0,2}}){spelled}(?P<joint>=)(?P<value>{_WORD})(?=[\s\"')\\]|$)", line)


def _commanded(line: str, given: re.Match[str], key: str, value: Any, *, itself: bool) -> list[str]:
    """The line with another value, or with the key behind its kin; ``None`` as the value takes a switch out, and a line that held nothing else."""
    start, end = given.span()
    if value is None:
        rest = line[:start] + line[end:].lstrip(" ") if itself else line
        return [] if not rest.strip(" \t\\") else [rest]
    sign = given["sign"] if itself or given["sign"] == "--" else ""
    joint = (given["joint"] or " ") if sign == "--" else "="
    new = f"{sign}{key}" if value is True and sign == "--" else f"{sign}{key}{joint}{str(value).lower() if isinstance(value, bool) else value}"
    return [line[:start] + new + line[end:] if itself else f"{line[:end]} {new}{line[end:]}"]


def _value_end(line: str, start: int) -> int | None:
    """Where a Python value that begins at ``start`` ends within its line; ``None`` where it goes on in the next."""
    depth, quote = 0, ""
    for at in range(start, len(line)):
        c = line[at]
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            if depth == 0:
                return at
            depth -= 1
        elif depth == 0 and c in ",#\n":
            return len(line[:at].rstrip())
    return len(line.rstrip()) if not depth and not quote else None


def as_json(text: str) -> dict[str, Any] | None:
    """The mapping of a JSON file; ``None`` where the text is none."""
    if text.lstrip()[:1] != "{":
        return None
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def canonical(text: str) -> str:
    """A JSON file as it is written after a change, so that the diff shows the change alone."""
    data = as_json(text)
    return text if data is None else json.dumps(data, indent=2) + "\n"


def _set(data: dict[str, Any], key: Path, value: Any) -> str | None:
    inside = data
    for part in key[:-1]:
        inside = inside.setdefault(part, {})
        if not isinstance(inside, dict):
            return None
    inside[key[-1]] = value
    return json.dumps(data, indent=2) + "\n"


def _as_yaml(value: Any) -> str:
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z][\w./ -]*", value) and value.lower() not in ("yes", "no", "on", "off", "true", "false", "null", "none")
        return value if plain else json.dumps(value)
    return json.dumps(value)
