"""A deep model's peak from runs of three, four and five of its layers: each segment of the step on its own, and the maximum afterwards.

A step's memory is a maximum of terms that are linear in the number of layers; the maximum itself is not, because its place moves. So the
stream is cut into segments (moment, module with its layer as first, middle or last, operator); the largest moment of each is linear in the
layers. Three runs check that: the fifth layer must add, to the byte, what the fourth added, else the extrapolation is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from advisor.ledger import DeviceName, Holding, Ledger, Moment
from advisor.run import Run
from advisor.simulation import building, timeline, zero_scope
from advisor.simulation.ranks import dividing, pipelining
from advisor.simulation.recorder import Recorder
from advisor.simulation.step import STEPS, record

DEPTHS = (3, 4, 5)
DIVIDED = (4, 5, 6)  # FSDP gathers the next block ahead, so the second and the last but one differ from those between
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_INDEX = re.compile(r"(?<=\.)(\d+)(?=\.|$)")
Segment = tuple[str, str, str]  # moment, place, operator
Group = tuple[str, str, str]  # part, name, dtype


class Refused(ValueError):  # noqa: N818  a reason, not a fault
    """Why this model is run whole."""


@dataclass
class Largest:
    """The largest moment of a segment: bytes, and tensors and bytes of each group alive in it."""

    bytes: int = -1
    groups: dict[Group, tuple[int, int]] = field(default_factory=dict)


def depth_key(run: Run) -> str:
    """The config's name for the number of layers.

    Raises:
        Refused: the layers are not all alike, or the config does not say how many there are.
    """
    arch = run.architecture
    if pipelining.degree(run.effective) > 1:
        raise Refused("they are dealt out over the stages of a pipeline")
    if zero_scope.wanted(run.effective):
        raise Refused("DeepSpeed's buckets and limits fill at other places in a deeper model")
    if arch is None or len(arch.blocks) != 1 or arch.vision or arch.encoder_decoder or not arch.vocab:
        raise Refused("its layers are not all alike")
    config = building.config_of(run.effective)
    for key in LAYER_KEYS:
        if config.get(key) == arch.layers:
            if differing := [name for name, value in _by_layer(config, arch.layers) if any(entry != value[0] for entry in value)]:
                raise Refused(f"its config's {differing[0]} tells layers apart")
            return key
    raise Refused("its config does not say how many layers there are in a key that is known")


def ledger(run: Run, say: Callable[[str], None], software: Mapping[str, str]) -> Ledger:
    """The probed ledger of the whole depth, exact to the byte.

    Raises:
        Refused: a segment is not linear, or the layers are not alike.
    """
    key = depth_key(run)
    assert run.architecture is not None
    layers = run.architecture.layers
    seen, homes = [], []
    depths = DIVIDED if dividing.world_of(run) > 1 else DEPTHS
    for depth in depths:
        say(f"{depth} of {layers} layers")
        config = shallower(building.config_of(run.effective), key, depth)
        shallow = replace(run, job=run.effective.but(model={"config": config}), deviations=())
        recorder = record(shallow, lambda _: None)
        seen.append(segments(recorder, depth, run.architecture.vocab))
        homes.append(segments(recorder, depth, run.architecture.vocab, host=True))
    whole, home = (extended(found[0], found[1], found[2], layers, depths[-1]) for found in (seen, homes))
    return _ledger(whole, home, software)


def shallower(config: Mapping[str, Any], key: str, depth: int) -> dict[str, Any]:
    """The config of as many layers; lists with an entry for each layer (``layer_types``) are cut to them, since transformers 5 compares their lengths."""
    return {**config, **{name: value[:depth] for name, value in _by_layer(config, config[key])}, key: depth}


def _by_layer(config: Mapping[str, Any], layers: int) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in config.items() if isinstance(value, (list, tuple)) and len(value) == layers > 0]


def segments(recorder: Recorder, depth: int, vocab: int, *, host: bool = False) -> dict[Segment, Largest]:
    """The largest moment of each segment of the last step, on the device or on the host."""
    found: dict[Segment, Largest] = {}
    alive: dict[Group, tuple[int, int]] = {}
    current, moment, step = 0, "load.ready", 0
    events = recorder.host_events if host else recorder.events
    begins = timeline.beginnings(recorder.host_moments if host else recorder.moments)

    def look(segment: Segment) -> None:
        best = found.setdefault(segment, Largest())
        if current > best.bytes:
            best.bytes, best.groups = current, dict(alive)

    for index, event in enumerate(events):
        for moment, step in begins.get(index, ()):
            if step == STEPS - 1:
                look((moment, "", "begin"))
        storage = recorder.storages[event.id]
        sign = -1 if event.free else 1
        group = (timeline.part_of(storage, vocab), timeline.name_of(storage), storage.dtype)
        count, size = alive.get(group, (0, 0))
        alive[group] = (count + sign, size + sign * storage.bytes)
        if not alive[group][0]:
            del alive[group]
        current += sign * storage.bytes
        if not event.free and step == STEPS - 1:
            look((moment, _place(storage.module, depth), storage.operator))
    for moment, step in begins.get(len(events), ()):
        if step == STEPS - 1 and events:
            look((moment, "", "begin"))
    return found


def _place(module: str, depth: int) -> str:
    def name(match: re.Match[str]) -> str:
        number = int(match[1])
        return "first" if number == 0 else "last" if number == depth - 1 else "middle"

    return _INDEX.sub(name, module, count=1)


def extended(
    third: Mapping[Segment, Largest], fourth: Mapping[Segment, Largest], fifth: Mapping[Segment, Largest], layers: int, deepest: int = DEPTHS[-1]
) -> dict[Segment, Largest]:
    """Each segment at the whole depth.

    Raises:
        Refused: naming the segment that is not linear.
    """
    if not third.keys() == fourth.keys() == fifth.keys():
        raise Refused("a segment comes or goes with depth")
    out = {}
    for segment, last in fifth.items():
        before, first = fourth[segment], third[segment]
        added = last.bytes - before.bytes
        if before.bytes - first.bytes != added:
            raise Refused(f"{segment[2] or segment[0]} in {segment[1] or segment[0]} is not linear in the layers")
        more = layers - deepest
        groups = {}
        for group in {**before.groups, **last.groups}:
            (count, size), (count_before, size_before) = last.groups.get(group, (0, 0)), before.groups.get(group, (0, 0))
            grown = (count + more * (count - count_before), size + more * (size - size_before))
            if grown[1]:
                groups[group] = grown
        out[segment] = Largest(last.bytes + more * added, groups)
    return out


def _ledger(found: Mapping[Segment, Largest], home: Mapping[Segment, Largest], software: Mapping[str, str]) -> Ledger:
    tops = _tops(found)
    holdings = [*_holdings(tops, "gpu"), *_holdings({moment: top for moment, top in _tops(home).items() if moment in tops}, "host")]
    moments = tuple(Moment(name, name.partition(".")[0]) for name in tops)
    return Ledger("probed", tuple(holdings), moments, rank="max", software=software)


def _tops(found: Mapping[Segment, Largest]) -> dict[str, Largest]:
    tops: dict[str, Largest] = {}
    for (moment, _, _), largest in found.items():
        if moment not in tops or largest.bytes > tops[moment].bytes:
            tops[moment] = largest
    return tops


def _holdings(tops: Mapping[str, Largest], device: DeviceName) -> Iterator[Holding]:
    for moment, top in tops.items():
        if sum(size for _, size in top.groups.values()) != top.bytes or any(size < 0 for _, size in top.groups.values()):
            raise Refused(f"what is alive at the largest instant of {moment} changes with depth")
        for (part, name, dtype), (count, size) in top.groups.items():
            values = {"tensors": count, "bytes": size}
            source = "recorded by the probe, extended by layers"
            yield Holding(part, name, size, frozenset({moment}), timeline.SUMS[device], values, source, dtype, device=device)
