"""The largest micro batch that fits, found by running: away from a first guess in growing strides, then by halving the gap."""

from __future__ import annotations

from collections.abc import Callable


def largest(fits: Callable[[int], bool], guess: int, most: int) -> int:
    """The largest number of 1 to ``most`` for which ``fits`` holds, and 0 where 1 does not; what fits must also fit smaller.

    ``guess``: where to begin (the estimate's answer: where that is right, two runs suffice).
    """
    low, high, stride = 0, most + 1, 1  # low fits, high does not
    at = max(1, min(guess, most))
    while True:
        if fits(at):
            low = at
        else:
            high = at
        if high - low <= 1:
            return low
        if high > most:
            at = min(low + stride, most)
        elif low == 0:
            at = max(high - stride, 1)
        else:
            at = (low + high) // 2
        stride *= 2
