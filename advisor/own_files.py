"""Lines to change, put into the files that a person pasted: a key that is there gets its new value, a new one goes beside its kin.

Nothing is guessed: a change is placed only where its key, or a key of the same table, was read from that file; the changed files are read
again, and a change that does not come back as the wanted value is not offered.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from functools import cache
from typing import Any

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.file_editing import Path, canonical, edited
from advisor.frameworks.syntax import WITHOUT
from advisor.job import Job

_FLAG = re.compile(r"--([A-Za-z_][\w.\-]*)(?: (.+))?")
_OVERRIDE = re.compile(r"([A-Za-z_]\w*(?:\.[\w\-]+)+)=(.*)")
_CALL = re.compile(r"^[\w.]+\(\.\.\., ?(.*)\)$", re.DOTALL)


class Changed(Struct, frozen=True):
    """One file before and after."""

    name: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        """A unified diff, with a line of context."""
        lines = unified_diff(self.before.splitlines(), self.after.splitlines(), f"a/{self.name}", f"b/{self.name}", n=1, lineterm="")
        return "\n".join(lines)


class Placed(Struct, frozen=True):
    """The files that change, and the lines that have no place in them, by framework."""

    files: tuple[Changed, ...]
    left: Mapping[str, tuple[str, ...]]


def placed(texts: Sequence[tuple[str, str]], evidence: Evidence, settings: Mapping[str, Sequence[str]], before: Job, after: Job) -> Placed:
    """Put ``settings`` (lines by framework) into ``texts`` (name, content); ``before`` and ``after`` are the jobs between which they lie."""
    contents, left = dict(texts), {}
    for framework, lines in settings.items():
        wanted = pairs(lines)
        if wanted is None:
            left[framework] = tuple(lines)
            continue
        trial = dict(contents)
        for key, value in wanted:
            spot = _spot(trial, evidence, framework, key)
            new = None if spot is None else edited(trial[spot[0]], spot, key, value)
            if spot is None or new is None:
                left[framework] = tuple(lines)  # half of a change is not a change
                break
            trial[spot[0]] = new
        else:
            contents = trial
    files = tuple(Changed(name, canonical(text), contents[name]) for name, text in texts if contents[name] not in (text, canonical(text)))
    if not files or not _reads_back(contents, before, after):
        return Placed((), {name: tuple(lines) for name, lines in settings.items()})
    return Placed(files, left)


def pairs(lines: Sequence[str]) -> list[tuple[Path, Any]] | None:
    """Keys (dotted ones as several parts) and values of a framework's lines; ``None`` where they are no settings (code, a command)."""
    import yaml

    text = "\n".join(lines).strip()
    if (given := _commands(lines)) is not None:
        return given
    try:
        if text.startswith("{"):
            return list(_leaves(json.loads(text)))
        if all("=" in line.split("(")[0] or _CALL.match(line) for line in lines) and not text.startswith(("#", "export ", "--")):
            inner = ", ".join(m[1] if (m := _CALL.match(line)) else line for line in lines)
            call = ast.parse(f"f({inner})", mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                return None
            return [((k.arg,), ast.literal_eval(k.value)) for k in call.keywords if k.arg]
        found = yaml.safe_load(text)
    except (ValueError, SyntaxError, yaml.YAMLError):
        return None
    return list(_leaves(found)) if isinstance(found, dict) else None


def _commands(lines: Sequence[str]) -> list[tuple[Path, Any]] | None:
    """``--key value``, a bare ``--key``, ``# without --key`` (``None``: it is taken out) and ``group.key=value``; ``None`` where a line is none of these."""
    found: list[tuple[Path, Any]] = []
    for line in lines:
        if (flag := _FLAG.fullmatch(line)) is not None:
            found.append(((flag[1],), flag[2] or True))
        elif line.startswith(WITHOUT):
            found.append(((line.removeprefix(WITHOUT),), None))
        elif (override := _OVERRIDE.fullmatch(line)) is not None:
            found.append(((override[1],), override[2]))
        else:
            return None
    return found


def _leaves(data: Mapping[str, Any], above: Path = ()) -> Iterable[tuple[Path, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, str(key)))
        else:
            yield (*above, str(key)), value


def _spot(contents: Mapping[str, str], evidence: Evidence, framework: str, key: Path) -> tuple[str, int, str, bool] | None:
    """(file, line, key as read, whether it is the key itself): where it stands, else where the most kin of its table stand."""
    known = _keys(framework)
    kin: dict[str, list[tuple[int, str]]] = {}
    for where, read, _ in evidence.seen_keys:
        name, _, number = where.rpartition(":")
        if name not in contents or not number.isdecimal():
            continue
        if read == ".".join(key) or (len(key) == 1 and read.rpartition(".")[2] == key[0] and read in known):
            return name, int(number), read, True
        if read in known and known[read] == known.get(".".join(key), ()):  # kin: a key of the same table and of the same calls
            kin.setdefault(name, []).append((int(number), read))
    if not kin:
        return None
    name = max(kin, key=lambda n: len(kin[n]))
    return name, *kin[name][-1], False


@cache
def _keys(framework: str) -> Mapping[str, tuple[str, ...]]:
    """Keys of a framework's table and of those that it inherits, each with the calls in which alone it has its meaning."""
    from advisor.frameworks.table import names, stack

    if framework not in names():  # a layer's name that is no table ("script"): it has no keys
        return {}
    tables = {table.name: table for table in stack(framework)}
    found: dict[str, tuple[str, ...]] = {}
    name: str | None = framework
    while name is not None and name in tables:
        found = {key: entry.scopes for entry in tables[name].entries for key in entry.all_keys} | found
        name = tables[name].inherits
    return found


def _reads_back(contents: Mapping[str, str], before: Job, after: Job) -> bool:
    """Whether the changed files, read again, say nothing other than the changed job about what was changed."""
    from advisor.frameworks.settings import changed
    from advisor.reading import read
    from advisor.run import resolve

    reading = read(list(contents.items()))
    job, agreed, wanted_all = reading.job, 0, changed(before, after)
    for path, wanted in wanted_all.items():
        said = job.get(path)
        if said is None:
            continue
        if said != wanted and said != before.get(path):
            return False
        agreed += said == wanted
    if not agreed:  # a switch that was taken out says nothing any more: what the framework does by default counts
        job = resolve(job, reading.evidence).job
        agreed = sum(job.get(path) == wanted for path, wanted in wanted_all.items())
    return agreed > 0
