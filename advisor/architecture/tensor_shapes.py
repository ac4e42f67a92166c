"""Every shape that a model's tensors have, with how often: what a failed request can be the size of."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from advisor.architecture.shape import Architecture, Tensor


@lru_cache(maxsize=64)
def tensor_shapes(architecture: Architecture) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """``(name, shape, count)`` of every parameter as the modelling code holds it, largest tensor first.

    Fused experts (``linear`` false) are one parameter of all experts, ``[experts, ...]``; experts apart are one each. Equal names and
    shapes in different kinds of layer are counted together.
    """
    counted: Counter[tuple[str, tuple[int, ...]]] = Counter()
    groups = [(architecture.outer, 1), *((block.tensors, block.count) for block in (*architecture.blocks, *architecture.vision, *architecture.mtp))]
    for tensors, times in groups:
        for tensor in tensors:
            shape, count = _held(tensor)
            counted[tensor.name, shape] += count * times
    return tuple(sorted(((name, shape, count) for (name, shape), count in counted.items()), key=lambda item: (-_elements(item[1]), item[0])))


def _held(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    if tensor.role == "expert" and not tensor.linear:
        return (tensor.times, *tensor.shape), 1
    return tensor.shape, tensor.times


def _elements(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
