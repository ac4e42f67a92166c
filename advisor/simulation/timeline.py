"""From recorded events to a ledger: what was alive at the largest moment of each phase of the last step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from advisor.ledger import DeviceName, Holding, Ledger, Moment

SUM = "sum of the tensors alive, as the allocator counts them"
SUMS: dict[DeviceName, str] = {"gpu": SUM, "host": "sum of the tensors alive, pinned ones as powers of two"}
_LAYER = re.compile(r"\.\d+\.")


class StorageLike(Protocol):
    """What the timeline reads of a recorded storage."""

    bytes: int
    operator: str
    phase: str
    step: int
    module: str
    shape: tuple[int, ...]
    dtype: str
    part: str | None
    name: str | None
    site: str


class EventLike(Protocol):
    """A birth or a death."""

    @property
    def free(self) -> bool:
        """True for a death."""

    @property
    def id(self) -> int:
        """Which storage."""


@dataclass(frozen=True)
class Point:
    """The largest instant of a moment of the step: bytes and the ids alive."""

    moment: str
    bytes: int
    alive: frozenset[int]


def peaks(events: Sequence[EventLike], storages: Mapping[int, StorageLike], marks: Sequence[tuple[int, str, int]], last_step: int) -> dict[str, Point]:
    """For each moment of the last step, its largest instant and what was alive then (also where nothing is allocated in it).

    ``marks``: where moments begin, ``(events before it, moment, step)``.
    """
    alive: set[int] = set()
    current, now = 0, ("load.ready", 0)
    best: dict[str, int] = {}
    tops: dict[str, frozenset[int]] = {}
    begins = beginnings(marks)

    def look(moment: str, step: int) -> None:
        if step == last_step and current > best.get(moment, -1):
            best[moment], tops[moment] = current, frozenset(alive)

    for index, event in enumerate(events):
        for now in begins.get(index, ()):
            look(*now)
        size = storages[event.id].bytes
        if event.free:
            alive.discard(event.id)
            current -= size
        else:
            alive.add(event.id)
            current += size
            look(*now)
    for begun in begins.get(len(events), ()):
        look(*begun)
    return {name: Point(name, best[name], tops[name]) for name in best}


def beginnings(marks: Sequence[tuple[int, str, int]]) -> dict[int, list[tuple[str, int]]]:
    """Moments and their steps by the number of events before them; several begin where nothing happens between them."""
    found: dict[int, list[tuple[str, int]]] = {}
    for at, name, step in marks:
        found.setdefault(at, []).append((name, step))
    return found


def ledger(
    events: Sequence[EventLike], storages: Mapping[int, StorageLike], marks: Sequence[tuple[int, str, int]], *,
    vocab: int, last_step: int, software: Mapping[str, str],
) -> Ledger:  # fmt: skip
    """The probed ledger, at the estimate's moments: one holding for each kind of tensor alive in one, adding up to its peak to the byte."""
    points = peaks(events, storages, marks, last_step)
    moments = tuple(Moment(name, name.partition(".")[0]) for name in points)
    return Ledger("probed", tuple(_holdings(points, storages, vocab, "gpu")), moments, rank="max", software=software)


def _holdings(points: Mapping[str, Point], storages: Mapping[int, StorageLike], vocab: int, device: DeviceName) -> Iterator[Holding]:
    for name, point in points.items():
        groups: dict[tuple[str, str, str], list[int]] = {}
        for number in point.alive:
            storage = storages[number]
            groups.setdefault((part_of(storage, vocab), name_of(storage), storage.dtype), []).append(storage.bytes)
        for (part, label, dtype), sizes in groups.items():
            values = {"tensors": len(sizes), "bytes": sum(sizes)}
            yield Holding(part, label, sum(sizes), frozenset({name}), SUMS[device], values, "recorded by the probe", dtype, device=device)


def with_home(
    ledger: Ledger, events: Sequence[EventLike], storages: Mapping[int, StorageLike], marks: Sequence[tuple[int, str, int]], *, vocab: int, last_step: int,
) -> Ledger:  # fmt: skip
    """The ledger with what is at home on the host (parameters, gradients, optimizer states), at the same moments."""
    if not events:
        return ledger
    known = {m.id for m in ledger.moments}
    points = {name: point for name, point in peaks(events, storages, marks, last_step).items() if name in known}
    return replace(ledger, holdings=(*ledger.holdings, *_holdings(points, storages, vocab, "host")))


def with_host(ledger: Ledger, size: int) -> Ledger:
    """The ledger with activations that are saved on the host, at their most."""
    if not size:
        return ledger
    moments = frozenset(m.id for m in ledger.moments if m.phase in ("forward", "loss", "backward"))
    away = Holding(
        "activations", "saved activations", size, moments, "sum of the tensors saved, at its largest", {"bytes": size}, "torch save_on_cpu", device="host"
    )
    return replace(ledger, holdings=(*ledger.holdings, away))


def as_json(
    events: Sequence[EventLike], storages: Mapping[int, StorageLike], marks: Sequence[tuple[int, str, int]],
    moments: Sequence[tuple[int, str, int]], *, vocab: int, last_step: int,
) -> dict[str, Any]:  # fmt: skip
    """The whole stream as plain data: allocated bytes after each event, each storage's life, and who is alive at the largest moment."""
    points = peaks(events, storages, moments, last_step)
    top = max(points.values(), key=lambda p: p.bytes)
    born: dict[int, int] = {}
    died: dict[int, int] = {}
    allocated, current = [], 0
    for index, event in enumerate(events):
        (died if event.free else born)[event.id] = index
        current += -storages[event.id].bytes if event.free else storages[event.id].bytes
        allocated.append(current)
    lives = [
        {
            "id": number, "bytes": s.bytes, "part": part_of(s, vocab), "name": s.name, "operator": s.operator, "module": s.module, "site": s.site,
            "shape": list(s.shape), "dtype": s.dtype, "phase": s.phase, "step": s.step + 1, "born": born[number], "died": died.get(number),
        }
        for number, s in storages.items() if number in born
    ]  # fmt: skip
    return {
        "version": 1, "unit": "events in order; bytes as the allocator counts them", "last_step": last_step + 1,
        "phases": [{"from": index, "phase": name, "step": step + 1} for index, name, step in marks],
        "peak": {"moment": top.moment, "phase": top.moment.partition(".")[0], "bytes": top.bytes, "alive": sorted(top.alive)},
        "allocated": allocated, "storages": lives,
    }  # fmt: skip


def part_of(storage: StorageLike, vocab: int) -> str:
    """The ledger's part for a recorded storage: its label, else what its shape and phase say."""
    if storage.part is not None:
        return storage.part
    if vocab and storage.shape and storage.shape[-1] == vocab and storage.phase != "step":
        return "logits"
    if vocab and len(storage.shape) == 1 and storage.phase != "step" and storage.shape[0] % vocab == 0 and storage.shape[0] > vocab:
        return "logits"
    if storage.phase == "step":
        return "optimizer"
    if len(storage.shape) == 4 and storage.shape[-1] == storage.shape[-2] and storage.shape[-1] > 256:
        return "attention"
    return "activations"


def name_of(storage: StorageLike) -> str:
    """A tensor's name with layer numbers taken out, so that the same tensor of every layer is one row."""
    if storage.name is not None:
        return _LAYER.sub(".*.", storage.name)
    where = _LAYER.sub(".*.", f"{storage.module}.").rstrip(".") or storage.phase
    return f"{where}: {storage.operator.removeprefix('aten::')}"
