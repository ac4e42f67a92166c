"""A job and its evidence as a query: only what was written, readable, and nothing that is the user's own text or place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from advisor.evidence import Evidence
from advisor.job import Job, Section, fields
from advisor.reading.pattern import pattern
from advisor.run import Run
from advisor.share import failure_writing
from advisor.share.form import NEVER, TICKS, VERSION, Link
from advisor.share.notation import write_list, write_mapping

SAFE = "-_.~:,()!*'@/;"
_LOCAL = pattern(r"^(/|\./|\.\./|~|[A-Za-z]:[\\/]|\\\\|file:)|\\|//|(^|/)(home|Users|mnt|workspace|scratch|tmp)/|^[^/]*/[^/]*/.", re.IGNORECASE)


def link(job: Job, evidence: Evidence) -> Link:
    """The link of a job and its evidence."""
    left_out: list[str] = []
    # what a reader only assumed is assumed anew by whoever opens the link
    assumed = {fact.field for fact in evidence.facts if fact.kind in ("assumed", "default")}
    written, failed = [p for p in _of_job(job, left_out) if p[0] not in assumed], failure_writing.write(job, evidence)
    if evidence.seen_keys or evidence.lines:
        written += _settled_by_text(job, evidence, dict([*written, *failed]))
    pairs = [("v", str(VERSION)), *written, *failed]
    return Link("&".join(f"{name}={quote(value, safe=SAFE)}" for name, value in pairs), tuple(left_out))


def _settled_by_text(job: Job, evidence: Evidence, given: Mapping[str, str]) -> list[tuple[str, str]]:
    """Fields that resolving takes from the text itself (a call without a wrapping policy, say): the link has no text, so it names them."""
    from advisor.run import resolve
    from advisor.share.opening import open_link

    opened = open_link(given)
    here, there = resolve(job, evidence), resolve(opened.job, opened.evidence)
    open_to = [path for path in fields() if path not in given and path not in NEVER and not path.startswith("model.") and here.job.get(path) is not None]
    return [(path, as_text(here.job.get(path))) for path in open_to if here.job.get(path) != there.job.get(path) or _less_certain(path, there, here)]


def _less_certain(path: str, run: Run, than: Run) -> bool:
    """Whether a value is one of several here, and settled there."""
    one, other = run.facts.get(path), than.facts.get(path)
    return one is not None and other is not None and bool(one.alternatives) and not other.alternatives


def with_ticks(shared: Link, ticks: Iterable[str] | None) -> Link:
    """The link with the changes that are ticked; ``None``: the plan as it is made."""
    if ticks is None:
        return shared
    return replace(shared, query=f"{shared.query}&{TICKS}={quote(write_list(list(ticks)), safe=SAFE)}")


def _of_job(job: Job, left_out: list[str]) -> Iterable[tuple[str, str]]:
    for section in sorted(Job.OPTIONAL):
        held = getattr(job, section)
        if held is not None and not held.written():
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
    if isinstance(value, Section):
        return write_mapping(value.written())
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
