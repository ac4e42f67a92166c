"""When a step is observed and when everything alive is looked at, so that watching stays within a share of the time whatever the model.

The first :data:`FIRST` steps are always observed: the first makes the optimizer's state, and what grows needs :data:`FIRST` - 1 boundaries to
show. Their cost is counted too and paid back before more is due. What an observed step costs is what it took beyond the usual: the median of
steps that were not observed, of which even the full level leaves some.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from statistics import median

FIRST = 4
DEFAULT, FULL = 0.02, 0.22  # of the time that has passed: what watching may cost
LOOKING = 0.04  # of it, at the full level, what looking at everything alive may
PLAIN, EVERY = 2, 16  # steps left unobserved after the first, and at the full level one in so many from then on


@dataclass(slots=True)
class Pace:
    """``every``: each step must be observed, whatever it costs (a policy raises)."""

    full: bool = False
    every: bool = False
    began: float = field(default_factory=lambda: time.monotonic())
    looked: float = 0.0  # seconds of looking at everything alive
    observed: float = 0.0  # seconds that observing has added
    _plain: deque[float] = field(default_factory=lambda: deque(maxlen=15))
    _unpriced: list[float] = field(default_factory=list)  # seconds of observed steps, as long as nobody knows what is usual

    def observe(self, step: int) -> bool:
        """Whether to observe this step's operators."""
        if self.every or step < FIRST:
            return True
        if len(self._plain) < PLAIN or (self.full and not step % EVERY):
            return False
        return self.looked + self.observed < (FULL if self.full else DEFAULT) * self._passed()

    def look(self, step: int) -> bool:
        """Whether to look at everything alive before this step (at the default level: after an observed one)."""
        return step <= FIRST or not (self.full or self.every) or self.looked < LOOKING * self._passed()

    def over(self, seconds: float, *, observed: bool) -> None:
        """A step has ended."""
        if not observed:
            self._plain.append(seconds)
        else:
            self._unpriced.append(seconds)
        if self._plain:
            usual = median(self._plain)
            self.observed += sum(max(0.0, each - usual) for each in self._unpriced)
            self._unpriced.clear()

    def _passed(self) -> float:
        return time.monotonic() - self.began
