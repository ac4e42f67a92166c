"""What a person states beside what was read: ``--set batch.micro_batch=1``, a chip on the page, a value of a link.

A stated value replaces the one that was read, in the job and in the facts, so that both agree on where it is from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from advisor.evidence import Evidence, Fact
from advisor.job import Job, JobError, fields, nearest_field
from advisor.job.known import section_in_words


class StatingError(ValueError):
    """A statement that is no ``FIELD=VALUE`` of the job file; the message says what would be right."""


def parse(text: str) -> tuple[str, Any]:
    """``batch.micro_batch=1`` as a field and its validated value.

    Raises:
        StatingError: unknown field (the nearest is named) or a value that the field does not take.
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals:
        raise StatingError(f"{text!r} is no FIELD=VALUE, e.g. batch.micro_batch=1")
    return path, validated(path, value.strip())


def validated(path: str, value: Any) -> Any:
    """The value as the job holds it; text is read as the field's type (lists ``a,b``, mappings ``key:value,key:value``)."""
    if path not in fields():
        if (says := section_in_words(path)) is not None:
            raise StatingError(f"{says}; write {path}.FIELD=VALUE")
        near = nearest_field(path)
        raise StatingError(f"the job file has no field {path!r}" + (f"; did you mean {near!r}?" if near else ""))
    complaint = ""
    for candidate in _candidates(path, value):
        try:
            return put(Job(), path, candidate).get(path)
        except JobError as error:
            complaint = complaint or str(error)
    raise StatingError(complaint)


def _candidates(path: str, value: Any) -> list[Any]:
    """Readings of a text, the plainest first: a single value, a list, a mapping. A card is a name or ``name:...,memory_gib:48``."""
    if not isinstance(value, str):
        return [value]
    from advisor.share import notation  # links state values too, and read them here

    found: list[Any] = [value]
    if value.lstrip()[:1] == "{":  # a model's config.json, pasted where it was asked for
        try:
            return [value, {key: held for key, held in json.loads(value).items() if not key.startswith("_")}]  # its private keys name files and commits
        except (ValueError, RecursionError):
            pass
    if value[:1] == "[" and value[-1:] == "]":  # a list as YAML and Python write it
        value = ",".join(item.strip().strip("\"'") for item in value[1:-1].split(","))
    for read in (notation.read_list, notation.read_mapping):
        try:
            found.append(read(value))
        except notation.NotationError:
            continue
    return found[::-1] if path == "hardware.gpu" and isinstance(found[-1], dict) and "memory_gib" in found[-1] else found


def put(job: Job, path: str, value: Any) -> Job:
    """The job with one field written; sections that are absent come into being.

    Raises:
        JobError: where the value is not one of the field's.
    """
    section, _, rest = path.partition(".")
    if not rest:
        return job.but(**{section: value})
    inner, _, leaf = rest.partition(".")
    if not leaf:
        return job.but(**{section: {inner: value}})
    current = job.get(f"{section}.{inner}")
    held = current.written() if current is not None else {}
    return job.but(**{section: {inner: {**held, leaf: value}}})


def state(job: Job, evidence: Evidence, stated: Mapping[str, Any], where: str | None = None) -> tuple[Job, Evidence]:
    """Job and evidence with the stated values in place of those that were read.

    Raises:
        StatingError: where the values do not go together.
    """
    try:
        for path, value in stated.items():
            job = put(job, path, value)
    except JobError as error:
        raise StatingError(str(error)) from None
    facts = tuple(Fact(path, job.get(path), "stated", where=where) for path in stated)
    kept = tuple(f for f in evidence.facts if f.field not in stated)
    return job, replace(evidence, facts=facts + kept, conflicts=tuple(c for c in evidence.conflicts if c.field not in stated))
