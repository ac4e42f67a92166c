"""A diagnosis as a link and back: the job and the facts of an error as readable query parameters, never its text.

Each job field is a parameter under its dotted path (``batch.seq_len=4096``); a failure's counters are ``error.requested=9.79GiB`` and
alike, a card's figures ``device.1=...``, and ``marks`` names what patterns matched in the text, so that the same rules speak again. Only
what was written is in it, with ``v``, the form's version. Everything in a link is checked like any other input and all results are
recomputed; what is unknown or wrong is dropped and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote

from advisor import sharing_evidence as evidences
from advisor.compact import write_list, write_mapping
from advisor.evidence import Evidence, Fact
from advisor.job import Job, fields
from advisor.stating import StatingError, put, validated

VERSION = 1
MAX_LINK = 2_000  # characters of the query: what chat clients and proxies carry without cutting
MAX_READ = 20_000  # of a query that is read back: far above any that is issued
MAX_PARAMETERS = 400
# version: what turns a link of that version into the next one's parameters. Every form issued is in tests/links.txt.
UPGRADES: Mapping[int, Any] = {}
NEVER = frozenset({"version", "name"})  # name is free text of the user's
OPTIONAL = Job.OPTIONAL
_SAFE = "-_.~:,()!*'@/;"
_LOCAL = re.compile(r"^(/|\./|\.\./|~|[A-Za-z]:[\\/]|\\\\|file:)|\\|//|(^|/)(home|Users|mnt|workspace|scratch|tmp)/|^[^/]*/[^/]*/.", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A query, what was left out of it and why, and whether it is short enough for an address."""

    query: str
    left_out: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it is short enough to be given as an address; else it is offered as a file."""
        return len(self.query) <= MAX_LINK

    @property
    def parameters(self) -> dict[str, str]:
        """The link as a mapping, for a page that sets its own address; empty where it is too long for one."""
        return dict(parse_qsl(self.query, keep_blank_values=True)) if self.fits else {}


@dataclass(frozen=True, slots=True)
class Opened:
    """What a link says, and a sentence for each parameter that was dropped."""

    job: Job
    evidence: Evidence
    dropped: tuple[str, ...] = ()


def link(job: Job, evidence: Evidence) -> Link:
    """The link of a job and its evidence."""
    left_out: list[str] = []
    # what a reader only assumed is assumed anew by whoever opens the link
    assumed = {fact.field for fact in evidence.facts if fact.kind in ("assumed", "default")}
    pairs = [("v", str(VERSION)), *(p for p in _of_job(job, left_out) if p[0] not in assumed), *evidences.write(job, evidence)]
    return Link("&".join(f"{name}={quote(value, safe=_SAFE)}" for name, value in pairs), tuple(left_out))


def _of_job(job: Job, left_out: list[str]) -> Iterable[tuple[str, str]]:
    for section in sorted(OPTIONAL):
        held = getattr(job, section)
        if held is not None and not held.model_dump(exclude_none=True):
            yield section, ""
    for path in fields():
        value = job.get(path)
        if value is None or path in NEVER:
            continue
        if path == "model.name" and is_local(str(value)):
            left_out.append("model.name: it looks like a path of your machine")
            known = _known_as(str(value))
            if known is not None:
                yield path, known
        elif path == "model.config":
            if not _settled_by_name(job):
                yield path, write_mapping(_telling(value))
        else:
            yield path, as_text(value)


def as_text(value: Any) -> str:
    """A field's value as a parameter: ``true``, ``4096``, ``a,b``, ``key:value``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return write_list(value)
    if isinstance(value, Mapping):
        return write_mapping(value)
    if hasattr(value, "model_dump"):
        return write_mapping(value.model_dump(exclude_none=True))
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def is_local(name: str) -> bool:
    """Whether a model's name looks like a place on someone's machine rather than a public name."""
    return bool(_LOCAL.search(name))


def _known_as(name: str) -> str | None:
    from advisor.architecture.presets import find

    preset = find(name)
    return preset.hub_id if preset else None


def _settled_by_name(job: Job) -> bool:
    """Whether the name alone gives the same shape as name and config together."""
    from advisor.architecture import of_model
    from advisor.job import Model

    name = job.model.name
    if not name or _known_as(name) is None:
        return False
    try:
        return of_model(Model(name=_known_as(name))) == of_model(job.model)
    except ValueError:
        return False


def _telling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config without which its shape would be read otherwise."""
    from advisor.architecture import read

    kept = dict(config)
    try:
        shape = read(kept)
    except ValueError:
        return {k: v for k, v in kept.items() if isinstance(v, (int, float, str, bool)) and not (isinstance(v, str) and is_local(v))}
    for key in list(kept):
        fewer = {k: v for k, v in kept.items() if k != key}
        try:
            if read(fewer) == shape:
                kept = fewer
        except ValueError:
            continue
    return kept


def open_link(query: str | Mapping[str, str]) -> Opened:
    """What a query says; what cannot be used is dropped and named, never an error."""
    dropped: list[str] = []
    given = _pairs(query, dropped)
    version = _version(given, dropped)
    for number in range(version, VERSION):
        given = UPGRADES[number](given)
    job, stated = Job(), []
    for name, text in given.items():
        if name in ("v", "sample", "embed") or evidences.owns(name):
            continue
        if name in OPTIONAL and not text:
            job = job if getattr(job, name) is not None else job.but(**{name: {}})
            continue
        if name not in fields() or name in NEVER:
            dropped.append(f"{_short(name)}: no such field")
            continue
        try:
            value = validated(name, text)
            job = put(job, name, value)
            stated.append(Fact(name, job.get(name), "stated", where="link"))
        except (StatingError, ValueError) as error:
            dropped.append(f"{name}: {_short(str(error), 200)}")
    evidence = evidences.read(given, dropped).with_facts(stated)
    return Opened(job, evidence, tuple(dropped))


def find_link(text: str) -> str | None:
    """The query of a link of ours, where a text is one (an address, the file that stands for one, or a diagnosis bundle) and nothing else."""
    if text[:1] == "{":
        from advisor.launching.bundle import query_of

        return query_of(text)
    line = text.strip()
    if len(line) > MAX_READ or len(line.split()) != 1:
        return None
    query = line.partition("?")[2] if "?" in line else line
    return query if query.startswith("v=") and query[2:3].isdecimal() else None


def _pairs(query: str | Mapping[str, str], dropped: list[str]) -> dict[str, str]:
    if isinstance(query, str):
        text = query.partition("?")[2] if "?" in query else query
        if len(text) > MAX_READ:
            dropped.append(f"everything after {MAX_READ:,} characters")
            text = text[:MAX_READ].rpartition("&")[0]
        try:
            found = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="replace"))
        except ValueError:
            dropped.append(f"the whole query: it has more than {MAX_PARAMETERS} parameters")
            return {}
        return found
    if sum(len(k) + len(str(v)) for k, v in query.items()) > MAX_READ or len(query) > MAX_PARAMETERS:
        dropped.append("the whole query: it is too long")
        return {}
    return {str(k): str(v) for k, v in query.items()}


def _version(given: Mapping[str, str], dropped: list[str]) -> int:
    text = given.get("v", str(VERSION))
    if not text.isdecimal() or not 1 <= int(text[:6]) <= VERSION:
        dropped.append(f"v: this advisor writes version {VERSION} and cannot read {_short(text)!r}; it is read as version {VERSION}")
        return VERSION
    return int(text)


def _short(text: str, limit: int = 60) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
