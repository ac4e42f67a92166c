"""What operators made in one step more, by phase and part: after the measured ones a step is watched, and nothing of it is counted."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import torch

from advisor.measurement.counting import PHASES
from advisor.measurement.watching import failing
from advisor.measurement.watching.session import watch

Made = dict[str, dict[str, int]]  # bytes by phase and part


class WatchedStepRanOutError(Exception):
    """The step that is watched ran out of memory on this rank of several, whose others now wait for it: none can go on, and all that was measured stands."""


class Observed:
    """Around that step. :attr:`made` is what it made; empty where watching it ran out of memory, which is then no failure of the job.

    Raises:
        WatchedStepRanOutError: it ran out on one of several ranks.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.made: Made = {}
        self._watch = watch(model, optimizer, checkpointing=False, explain=False, verify=False)

    def __enter__(self) -> Self:
        """The step begins."""
        self._watch.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        """It has ended; what watching itself needs may be what no longer fits, though the measured steps did."""
        self._watch.__exit__(kind, error, trace)
        if error is not None:
            if failing.is_memory(error) and several():
                raise WatchedStepRanOutError from error
            return failing.is_memory(error)
        if self._watch.failed is None:
            self.made = _by_phase({phase: self._watch.peaks[phase] for phase in ("forward", "loss", "backward", "step") if phase in self._watch.peaks})
        return False


def several() -> bool:
    """Whether this process is one of several ranks."""
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def _by_phase(peaks: dict[str, tuple[int, dict[str, int]]]) -> Made:
    found = {phase: parts for phase, (_, parts) in peaks.items() if phase in PHASES}
    if "loss" in peaks and peaks["loss"][0] > peaks.get("forward", (0, {}))[0]:  # a loss is part of the forward pass to a counter
        found["forward"] = peaks["loss"][1]
    return found
