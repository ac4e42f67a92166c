"""Which blocks have the size of a parameter of the job's model, and in which precisions: weights that are held twice show here.

A block of ``elements x width`` bytes is counted for a parameter of that many elements. Sizes that two widths of two parameters share are given to
neither; blocks that an optimizer or a loss made are left out, because fp32 moments and masters have a parameter's shape by intent. Gradients
have it too: blocks without a Python frame match, but are never called duplicates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from advisor.architecture.shape import Architecture
from advisor.architecture.tensor_shapes import tensor_shapes
from advisor.evidence import Line
from advisor.reading.snapshot.telling import Told
from advisor.units import MIB, show

WIDTHS = {4.0: "4 bytes", 2.0: "2 bytes", 1.0: "1 byte", 0.5: "half a byte"}
LEAST = MIB // 4  # smaller tensors (norms, biases) have sizes that many things share
NOT_WEIGHTS = ("optimizer", "logits", "attention", "activations", "communication", "rollout-cache")
LEAST_SHARE = 0.1  # of the parameters (by elements) that a width must hold to be told
LEAST_AGAIN = 64 * MIB
ENOUGH = 0.5  # of a precision's parameters (by elements) for it to count as held


def shapes_of(told: Sequence[Told], architecture: Architecture) -> tuple[Line, ...]:
    """Lines: blocks that match parameters, for each width that at least a tenth of the parameters are found in."""
    counts: Counter[int] = Counter()
    for _, shape, times in tensor_shapes(architecture):
        counts[prod(shape)] += times
    known = {elements: times for elements, times in counts.items() if elements * 2 >= LEAST}
    whole = sum(elements * times for elements, times in known.items())
    out: list[Line] = []
    for item in told:
        for device in item.summary["devices"]:
            live = device if device["has_segments"] else device["trace"]["peak"] if device["trace"] else None
            if live is not None and whole:
                rank = item.samples[0].rank if item.samples else None
                out.extend(Line(item.name, text, rank) for text in _matched(live, known, whole))
    return tuple(out)


def _matched(live: Mapping[str, Any], known: Mapping[int, int], whole: int) -> Iterator[str]:
    blocks: Counter[int] = Counter()
    named: Counter[int] = Counter()  # without what has no Python frame: gradients have a parameter's size by right
    for size, count, part in live["sizes"]:
        if part not in NOT_WEIGHTS:
            blocks[size] += count
            named[size] += 0 if part == "unrecorded" else count
    widths: list[str] = []
    again = 0
    for width, words in WIDTHS.items():
        sized = {int(each * width): (each, times) for each, times in known.items() if not _shared(int(each * width), width, known)}
        elements = sum(min(blocks[size], times) * each for size, (each, times) in sized.items())
        if elements < LEAST_SHARE * whole:
            continue
        number, held = sum(blocks[size] for size in sized), sum(blocks[size] * size for size in sized)
        yield f"snapshot shapes: {number} blocks match parameters at {words} an element, {show(held)}, {elements / whole:.0%} of the parameters"
        again += sum(max(named[size] - times, 0) * size for size, (_, times) in sized.items())
        if sum(min(named[size], times) * each for size, (each, times) in sized.items()) >= ENOUGH * whole:
            widths.append(words)
    if len(widths) > 1:
        yield f"snapshot duplicates: the parameters are held at {' and at '.join(widths)} an element at once, outside the optimizer"
    if again >= LEAST_AGAIN:
        yield f"snapshot duplicates: {show(again)} in blocks of a parameter's size beyond one block for each parameter"


def _shared(size: int, width: float, known: Mapping[int, int]) -> bool:
    """Whether another parameter has the same size at another width."""
    return any(other != width and size / other in known for other in WIDTHS)
