"""Anything that a person pastes or drops, read: one job, and the evidence beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from advisor.evidence import Evidence, NotUnderstood, Source
from advisor.faults import Contained
from advisor.job import Job
from advisor.reading import as_it_stands, binary, capacity, deadline, frame_facts, leaves, notebooks, parts, printed_by_code, runs, serving, sources
from advisor.reading.deadline import Deadline
from advisor.reading.decoding import decoded
from advisor.reading.failures import failures_of
from advisor.reading.gathering import Gathered, take_code, take_config, take_log
from advisor.reading.inherited import bases, beneath, by_content, without_given
from advisor.reading.lines import excerpt
from advisor.reading.masking import mask
from advisor.reading.mentions import only_mentioned
from advisor.reading.merge import GUESS, PRINTED, Ranked, merge, rank_of
from advisor.reading.ordering import ordered
from advisor.reading.progress import with_loose, with_progress
from advisor.reading.restated import without_restatements
from advisor.reading.rule_lines import lines_of
from advisor.reading.schedulers import ended_by_scheduler
from advisor.reading.snapshot.telling import Told, joined
from advisor.reading.told import failure_told

BUNDLE = '"advisor_bundle"'  # how a diagnosis bundle of `advisor run` begins
CONFIG_BYTES = 1024 * 1024  # a config is some kilobytes; a notebook with its outputs may be larger and is named .ipynb
NOTEBOOK_BYTES = 16 * 1024 * 1024


class Reading(Struct, frozen=True):
    """What was read. ``why`` says of an empty or unreadable text what was found instead.

    ``snapshots``: the summaries of memory snapshots, for views of more than the evidence says (fragmentation map, places, sizes).
    """

    job: Job
    evidence: Evidence
    state: Literal["read", "empty", "unreadable"] = "read"
    why: str | None = None
    snapshots: tuple[Told, ...] = ()


def read(items: Sequence[tuple[str, bytes | str | Path]], *, seconds: float | None = deadline.SECONDS) -> Reading:
    """Read texts, files, folders and archives: ``(name, content or path)`` each, within ``seconds`` by the clock (memory snapshots have limits of their own).

    Never raises for what is in them: what cannot be read is named in ``evidence.sources`` and ``evidence.not_understood``, what was cut short in
    the note of its source.
    """
    gathered = Gathered()
    limit = Deadline(seconds)
    for text in sources.texts(items):
        if text.kind != "text":
            _read_binary(text, gathered)
        elif limit.passed():
            _refuse(text, f"not read: the time for everything together was over. {limit.note or ''}".strip(), gathered)
        else:
            _read_text(text, gathered, limit.part())
    told = tuple(failure for item in gathered.snapshots for failure in item.failures)
    named = bases(gathered.seen_keys)
    gathered.ranked = by_content(beneath(gathered.ranked, named), (source.name for source in gathered.sources))
    gathered.not_understood = without_given(gathered.not_understood, named, (source.name for source in gathered.sources))
    if not gathered.failures and not told and (said := failure_told(gathered.excerpts)) is not None and not only_mentioned(said):
        gathered.failures.append(said)
    elif not gathered.failures and not told:
        gathered.failures.extend(failure for item in gathered.excerpts for failure in ended_by_scheduler(item))
    if not gathered.samples:
        gathered.samples.extend(printed_by_code.samples_of(gathered.excerpts))
    shown = without_restatements(joined(tuple(gathered.failures), told))
    failures = with_progress(with_loose(ordered(shown, gathered.stamps), gathered.loose), gathered.excerpts)
    failures = serving.with_cache(failures, gathered.excerpts)
    if (serves := serving.served(gathered.excerpts)) is not None:
        gathered.seen_keys.append(serves)
        gathered.ranked = serving.without_trainers(gathered.ranked)
    guessed = [card for failure in failures[:1] if (card := capacity.card_of_failure(failure)) is not None]
    if not any(item.fact.field == "framework.name" and item.fact.value != "custom" for item in gathered.ranked):
        guessed += list(leaves.facts_of(gathered.seen_keys))
    gathered.ranked = capacity.sized(gathered.ranked, failures)
    merged = merge([*guessed, *capacity.cards_of_devices(tuple(gathered.devices)), *gathered.ranked])
    if (stored := binary.stored_width(merged.job, gathered.seen_keys)) is not None and merged.job.get("load.dtype") is None:
        merged = merge([*guessed, *capacity.cards_of_devices(tuple(gathered.devices)), Ranked(stored, GUESS), *gathered.ranked])
    evidence = Evidence(
        facts=merged.facts,
        failures=failures,
        lines=(*lines_of(gathered.excerpts), *gathered.figures, *binary.lines_between(gathered.snapshots, merged.job)),
        devices=tuple(gathered.devices),
        samples=tuple(gathered.samples),
        conflicts=(*merged.conflicts, *gathered.conflicts),
        sources=tuple(gathered.sources),
        not_understood=(*gathered.not_understood, *merged.not_understood),
        seen_keys=tuple(gathered.seen_keys),
    )
    state, why = _state(evidence, gathered)
    return Reading(merged.job, evidence, state, why, tuple(gathered.snapshots))


def _read_text(text: sources.Text, gathered: Gathered, limit: Deadline) -> None:
    if text.problem is not None and not text.size_bytes:
        _refuse(text, text.problem, gathered)
        return
    most = NOTEBOOK_BYTES if text.name.endswith((".ipynb", ".json")) else CONFIG_BYTES
    whole: list[bytes] | None = [] if text.size_bytes <= most else None
    found = excerpt(text.name, _teed(limit.until(text.chunks()), whole))
    if found.binary:
        _refuse(text, "not a text: nothing in it was read", gathered)
        return
    raw = b"".join(decoded(whole)).decode("utf-8", "replace").removeprefix("\ufeff") if whole else None
    if raw is not None and binary.is_snapshot_text(raw):
        _take_snapshot(text, lambda: binary.snapshot_of_text(text.name, raw), gathered)
        return
    if raw is not None and BUNDLE in raw[:200]:
        gathered.problems.append(f"{text.name}: an earlier diagnosis of the advisor; give it alone to open it")
        gathered.sources.append(Source(text.name, "earlier diagnosis", text.size_bytes, "not read again: what it says came from the texts of its run"))
        return
    kinds: list[str] = []
    content = mask(as_it_stands.plain_unless_parsed(text.name, raw, CONFIG_BYTES)) if raw is not None else None
    notebook = notebooks.opened(content) if content is not None else None
    log, problem = found, None
    inner: list[str] = []
    rest = content
    if notebook is not None:
        content, rest = notebook.code, notebook.cells
        log = excerpt(f"{text.name} (outputs)", [notebook.shown.encode("utf-8", "replace")])
    elif content is not None and len(content) <= CONFIG_BYTES:
        content, later = runs.of_one_run(text.name, content, failures_of(found), found)
        gathered.not_understood.extend(later)
        inner, rest = parts.parts(text.name, content)
    with Contained() as config_fault:
        for part in inner:
            if not limit.passed() and take_config(text.name, part, gathered, kinds) is not None:
                continue  # a block that looks like a config and is none: the log's readers see it all the same
        if not limit.passed():
            problem = take_config(text.name, rest, gathered, kinds, whole=notebook is not None)
    with Contained() as code_fault:
        if content is not None and not limit.passed():
            take_code(text.name, content, gathered)
    with Contained() as log_fault:
        take_log(log, gathered, kinds, content if not limit.passed() and problem is None else None)
    for fault in (config_fault, code_fault, log_fault):
        if fault.said is not None:
            gathered.not_understood.append(NotUnderstood(text.name, text.name, fault.said))
    if problem is not None and kinds:
        gathered.not_understood.append(NotUnderstood(text.name, text.name, problem))
        problem = None
    elif problem is not None:
        gathered.problems.append(f"{text.name}: {problem}")
        gathered.not_understood.append(NotUnderstood(text.name, text.name, problem))
    blank = not any(line.text.strip() for line in found.lines)
    gathered.sources.append(
        Source(
            text.name,
            " and ".join(kinds) or ("unreadable" if problem else "empty" if blank else "text"),
            found.size_bytes,
            problem or text.problem or found.cut or limit.note,
        )
    )


def _read_binary(text: sources.Text, gathered: Gathered) -> None:
    if text.kind == "pickle":
        _take_snapshot(text, lambda: binary.snapshot_of(text), gathered)
        return
    try:
        found, lines = binary.header_of(text)
    except ValueError as error:
        _refuse(text, str(error), gathered)
        return
    gathered.ranked.extend(Ranked(fact, rank_of(found.kind)) for fact in found.facts)
    gathered.seen_keys.extend(found.seen_keys)
    gathered.figures.extend(lines)
    gathered.sources.append(Source(text.name, found.kind, text.size_bytes, "only its header was read"))


def _take_snapshot(text: sources.Text, reader: Callable[[], Told], gathered: Gathered) -> None:
    try:
        told = reader()
    except ValueError as error:
        _refuse(text, str(error), gathered)
        return
    gathered.snapshots.append(told)
    gathered.ranked.extend(Ranked(fact, PRINTED) for fact in told.facts)
    gathered.ranked.extend(frame_facts.facts_of(told.failures))
    gathered.samples.extend(told.samples)
    gathered.figures.extend(told.lines)
    gathered.sources.append(Source(text.name, "memory snapshot", text.size_bytes, None))


def _teed(chunks: Iterable[bytes], whole: list[bytes] | None) -> Iterator[bytes]:
    for chunk in chunks:
        if whole is not None:
            whole.append(chunk)
        yield chunk


def _refuse(text: sources.Text, why: str, gathered: Gathered) -> None:
    gathered.problems.append(f"{text.name}: {why}")
    gathered.sources.append(Source(text.name, "unreadable", text.size_bytes, why))
    gathered.not_understood.append(NotUnderstood(text.name, text.name, why))


def _state(evidence: Evidence, gathered: Gathered) -> tuple[Literal["read", "empty", "unreadable"], str | None]:
    if not gathered.sources or all(s.kind == "empty" for s in gathered.sources):
        return "empty", "nothing was handed in: paste the error, the config or the launch command"
    useful = evidence.facts or evidence.failures or evidence.devices or evidence.samples or evidence.seen_keys
    if not useful and gathered.problems:
        return "unreadable", "; ".join(gathered.problems[:4])
    if not useful and evidence.not_understood:
        return "unreadable", f"{evidence.not_understood[0].where}: {evidence.not_understood[0].why}"
    if not useful:
        return "read", "the text was read, but nothing in it names a model, a setting, a card or a failure"
    return "read", None
