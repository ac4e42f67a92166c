"""A query read back: everything in it is checked like any other input, and what is unknown or wrong is dropped and named."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from msgspec import Struct

from advisor.evidence import Evidence, Fact
from advisor.job import Job, fields
from advisor.share import failure_reading, failure_writing, form
from advisor.share.form import MAX_PARAMETERS, MAX_READ, MAX_TICKS, NEVER, OF_PAGES, TICKS
from advisor.share.notation import NotationError, read_list
from advisor.stating import StatingError, put, validated


class Opened(Struct, frozen=True):
    """What a link says, and a sentence for each parameter that was dropped."""

    job: Job
    evidence: Evidence
    dropped: tuple[str, ...] = ()


def open_link(query: str | Mapping[str, str]) -> Opened:
    """What a query says; what cannot be used is dropped and named, never an error."""
    dropped: list[str] = []
    given = parameters_of(query, dropped)
    version = _version(given, dropped)
    for number in range(version, form.VERSION):
        given = form.UPGRADES[number](given)
    job, stated = Job(), []
    for name, text in given.items():
        if name in OF_PAGES or failure_writing.owns(name):
            continue
        if name in Job.OPTIONAL and not text:
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
    evidence = failure_reading.read(given, dropped).with_facts(stated)
    return Opened(*_with_card(job, evidence), tuple(dropped))


def _with_card(job: Job, evidence: Evidence) -> tuple[Job, Evidence]:
    """A link leaves out a card that was only assumed from its printed total; from the same total it is assumed again, with the same alternatives."""
    if job.hardware.gpu is not None:
        return job, evidence
    from advisor.reading.capacity import card_of_failure, cards_of_devices
    from advisor.reading.merge import merge

    guessed = [card for failure in evidence.failures[:1] if (card := card_of_failure(failure)) is not None]
    facts = [fact for fact in merge([*guessed, *cards_of_devices(evidence.devices)]).facts if fact.field == "hardware.gpu"]
    for fact in facts:
        job = put(job, fact.field, fact.value)
    return job, evidence.with_facts(facts)


def ticks_of(query: str | Mapping[str, str]) -> tuple[str, ...] | None:
    """The changes that a link ticks, known ones only; ``None`` where it says nothing of them."""
    text = parameters_of(query).get(TICKS)
    if text is None:
        return None
    from advisor.techniques import all_techniques

    try:
        return tuple(str(name) for name in read_list(text)[:MAX_TICKS] if str(name) in all_techniques())
    except NotationError:
        return None


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


def parameters_of(query: str | Mapping[str, str], dropped: list[str] | None = None) -> dict[str, str]:
    """The parameters of a query, within bounds; what is beyond them is named in ``dropped``."""
    dropped = [] if dropped is None else dropped
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
    text = given.get("v", str(form.VERSION))
    if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= form.VERSION:
        dropped.append(f"v: this advisor writes version {form.VERSION} and cannot read {_short(text)!r}; it is read as version {form.VERSION}")
        return form.VERSION
    return int(text)


def _short(text: str, limit: int = 60) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
