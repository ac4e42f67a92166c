"""The advisor's own job file (``version: 1``), as the page and the command line write it: every field is read by its own name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from advisor.evidence import Fact, NotUnderstood
from advisor.frameworks.key import Key, Unread
from advisor.job import Job, JobError, fields, nearest_field, read_job, spelling
from advisor.reading.configs.config_reading import ConfigReading
from advisor.reading.configs.parsed import Parsed

KIND = "job file"
_TWICE = "written twice in the job file; it was left out: keep the one that is meant"
_WHOLE = ("model.config",)  # a mapping that is one value
_OPEN = ("framework.versions.", "framework.allocator.")  # mappings whose keys are the user's


def is_job_file(parsed: Parsed) -> bool:
    """Whether a mapping says ``version: 1`` and names a section of the job file."""
    tops = {key.path.partition(".")[0] for key in parsed.keys if "." in key.path}
    version = next((key.value for key in parsed.keys if key.path == "version"), None)
    return version == 1 and not isinstance(version, bool) and bool(tops & set(Job.__struct_fields__))


def read_job_file(name: str, parsed: Parsed) -> ConfigReading:
    """Facts of a job file; a key or value that is wrong is listed with what would be right, and the others are kept."""
    facts: list[Fact] = []
    wrong: list[NotUnderstood] = []
    written = Counter(key.path for key in parsed.keys)
    told: set[str] = set()
    for key in _joined(parsed.keys):
        where = f"{name}:{key.line}"
        if written[key.path] > 1:
            if key.path not in told:
                told.add(key.path)
                wrong.append(NotUnderstood(where, f"{key.path} = {key.value}"[:200], _TWICE))
            continue
        if key.path in ("version", "name"):
            continue
        problem = _problem(key) or _other_base(key)
        if problem is not None:
            told.add(key.path)
            wrong.append(NotUnderstood(where, f"{key.path} = {key.value}"[:200], problem))
        elif key.value is not None:
            facts.append(Fact(key.path, key.value, "read", where=where, text=key.text))
    seen = tuple((f"{name}:{k.line}", k.path, str(k.value) if isinstance(k.value, Unread) else k.value) for k in parsed.keys[:2000] if k.path not in told)
    return ConfigReading(KIND, None, tuple(facts), seen, tuple(wrong))


def _problem(key: Key) -> str | None:
    known = key.path in fields() or key.path.startswith(_OPEN)
    if not known:
        near = nearest_field(key.path)
        return "no field of the job file" + (f"; did you mean {near}?" if near else "")
    section, _, rest = key.path.partition(".")
    try:
        read_job({section: _nested(rest, key.value)} if rest else {section: key.value})
    except JobError as error:
        return str(error)
    return None


def _other_base(key: Key) -> str | None:
    """A number that YAML takes in another base than it looks to be written in."""
    if isinstance(key.value, bool) or not isinstance(key.value, int):
        return None
    leaf = re.escape(key.path.rpartition(".")[2])
    match = re.search(rf"(?<![\w.]){leaf}\s*:\s*([-+]?\d[\d_:]*)(?=\s|[,}}\]]|$)", key.text)
    return spelling.other_base(match.group(1)) if match is not None else None


def _nested(path: str, value: Any) -> Any:
    outer, _, inner = path.partition(".")
    return {outer: _nested(inner, value) if inner else value}


def _joined(keys: list[Key]) -> Iterator[Key]:
    """The keys, those of a mapping that is one value put back together."""
    whole: dict[str, dict[str, Any]] = {}
    first: dict[str, Key] = {}
    for key in keys:
        at = next((w for w in _WHOLE if key.path.startswith(f"{w}.")), None)
        if at is None:
            yield key
            continue
        first.setdefault(at, key)
        place = whole.setdefault(at, {})
        *outer, leaf = key.path[len(at) + 1 :].split(".")
        for part in outer:
            inner = place.setdefault(part, {})
            place = inner if isinstance(inner, dict) else place
        place[leaf] = str(key.value) if isinstance(key.value, Unread) else key.value
    for at, value in whole.items():
        yield Key(at, value, first[at].line, first[at].text)
