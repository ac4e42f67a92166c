"""What has been read so far, over all texts, and how a text's config, code, log and remarks go into it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.evidence import Conflict, Device, Failure, Frame, Line, NotUnderstood, Sample, Source
from advisor.reading import code_facts, frame_facts, handoff, leaves, memory_stats, memory_summary, printed, printed_lengths, prose, system
from advisor.reading.banners import loops_of
from advisor.reading.collect import collected
from advisor.reading.embedded import printed_configs
from advisor.reading.failures import failures_of, loose_frames
from advisor.reading.lines import Excerpt
from advisor.reading.merge import GUESS, PRINTED, Ranked, rank_of
from advisor.reading.nvidia_smi import devices_of
from advisor.reading.own_or_foreign import settle
from advisor.reading.parts import FILES
from advisor.reading.pattern import pattern
from advisor.reading.plausible import implausible
from advisor.reading.samples import samples_of
from advisor.reading.snapshot.telling import Told
from advisor.reading.told import before_error

MOST_LAUNCHES = 24  # distinct commands of a log that are read: a launch has a handful
_PROSE_LINE = pattern(
    r"^(?!from |import |def |class |with |for |if |return |export |\s|[\w.]+\(|[\w.\"'-]{1,60}\s?[:=])[\w*>-][^={}]{8,}$"
)  # neither code nor a setting
REMARKS = 300  # lines of a log that are searched for remarks: people write above a log, not in its middle


class Gathered(Struct):
    """Facts with their ranks, failures, figures, cards and whatever else the texts gave, in their order."""

    ranked: list[Ranked] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    excerpts: list[Excerpt] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    not_understood: list[NotUnderstood] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    seen_keys: list[tuple[str, str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    figures: list[Line] = field(default_factory=list)
    stamps: dict[str, float] = field(default_factory=dict)
    loose: list[tuple[Frame, ...]] = field(default_factory=list)  # tracebacks that were pasted apart from their error
    snapshots: list[Told] = field(default_factory=list)


def take_config(name: str, text: str | None, gathered: Gathered, kinds: list[str], *, whole: bool = False) -> str | None:
    """Facts of a config, where the text is one (``whole``: with no log in it). Returns the reason where it was refused."""
    if not text:
        return None
    found = handoff.read_config(name, text, whole=whole)
    if found is None:
        return None
    if found.problem:
        return found.problem
    kinds.append(found.kind)
    rank = rank_of(found.kind)
    gathered.ranked.extend(Ranked(fact, rank) for fact in found.facts)
    gathered.seen_keys.extend(found.seen_keys)
    gathered.not_understood.extend(found.not_understood)
    gathered.conflicts.extend(found.conflicts)
    return None


def take_code(name: str, content: str, gathered: Gathered) -> None:
    """What pasted Python does with tensors; of a text of another kind, nothing."""
    if not code_facts.looks_like_code(content):
        return
    gathered.seen_keys.extend((f"{name}:{item.line}", f"code.{item.what}", item.code) for item in code_facts.code_facts(content))


def take_log(found: Excerpt, gathered: Gathered, kinds: list[str], text: str | None) -> None:
    """Failures, cards, figures and printed settings of a log, and the remarks around it."""
    gathered.excerpts.append(found)
    failures = failures_of(found)
    for failure in failures:
        if (why := implausible(failure)) is not None:
            gathered.not_understood.append(NotUnderstood(failure.where, failure.text[:200], f"its numbers were not used: {why}"))
        else:
            gathered.failures.append(settle(failure))
    if not failures and (frames := loose_frames(found)):
        gathered.loose.append(frames)
    stamps = {found.where(line): line.stamp for line in found.lines if line.stamp is not None}
    gathered.stamps.update({failure.where: stamps[failure.where] for failure in failures if failure.where in stamps})
    devices, samples = devices_of(found), samples_of(found)
    for sample, lines in (*memory_summary.summaries_of(found), *memory_stats.stats_of(found)):
        samples.append(sample)
        gathered.figures.extend(lines)
    for item in collected(found):
        if isinstance(item, Ranked):
            gathered.ranked.append(item)
        elif isinstance(item, Device):
            devices.append(item)
        else:
            gathered.not_understood.append(item)
    gathered.ranked.extend(printed.facts_of(found))
    gathered.ranked.extend(printed_lengths.facts_of(found))
    gathered.ranked.extend(system.facts_of(found))
    gathered.ranked.extend(frame_facts.facts_of(failures))
    gathered.devices.extend(devices)
    gathered.samples.extend(samples)
    is_config = bool(kinds)
    if any(f.kind != "not-memory" for f in failures):
        kinds.append("memory failure")
    elif failures:
        kinds.append("traceback")
    if devices:
        kinds.append("list of cards")
    if samples:
        kinds.append("memory figures")
    launches: dict[str, str] = {}
    for where, command in leaves.commands_of(found):
        if len(launches) < MOST_LAUNCHES:
            launches.setdefault(command, where)  # a scheduler prints the same launch for every rank
    for command, where in launches.items():
        if (launched := handoff.read_config("launched.sh", command)) is not None and not launched.problem:
            gathered.ranked.extend(Ranked(replace(fact, where=where), PRINTED) for fact in launched.facts)
            gathered.seen_keys.extend((where, key, value) for _, key, value in launched.seen_keys)
    for block in printed_configs(found.name, text) if text is not None and not is_config else ():
        gathered.ranked.extend(Ranked(fact, PRINTED) for fact in block.facts)
        gathered.seen_keys.extend(block.seen_keys)
        kinds.append(block.kind)
    remarks = list(_remarks(found, text if is_config else None))
    said = prose.remarks_of(iter(remarks))
    if is_config and found.name.lower().endswith(FILES):  # a model in a script's comment is most often an example's
        said = (replace(item, rank=GUESS) if item.fact.field == "model.name" else item for item in said)
    gathered.ranked.extend(said)
    if is_config and not found.name.lower().endswith(FILES):
        read = {where for where, _ in remarks}
        gathered.ranked.extend(prose.beside((found.where(line), line.text) for line in found.lines[:REMARKS] if found.where(line) not in read))
    if not is_config:
        gathered.ranked.extend(item for where, line in remarks for item in leaves.inline(where, line))


def _remarks(found: Excerpt, config: str | None) -> Iterator[tuple[str, str]]:
    """The comments of a config; else the lines near a text's start that are neither frame nor counters."""
    if config is not None:
        yield from prose.comments(found.name, config)
        if found.name.lower().endswith(FILES):
            return  # what stands in a file is the project's; what is pasted beside a config is the reporter's
    banner = loops_of(found)
    for line in found.lines[:REMARKS]:
        if line.number in banner:
            continue  # a loop's settings, read by their heading
        said = before_error(line.text)
        if 2 <= len(said) <= 400 and 'File "' not in said and (config is None or _PROSE_LINE.match(said)):
            yield found.where(line), said
