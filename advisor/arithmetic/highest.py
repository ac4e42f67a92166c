"""Whether a run may allocate more than so many bytes: the high end of its range, worked out only as far as the question needs.

A plan asks this of every form of a run on every card. The answer needs one of four totals, upwards only, without what lies outside of torch; and one
unknown that alone takes the total beyond the limit settles it, because no other takes it back (:func:`advisor.arithmetic.interval.joined`).
"""

from __future__ import annotations

from collections.abc import Callable

from advisor.arithmetic.interval import DECIDES, Change, Move, joined, moved, own_error, unknown
from advisor.ledger import Ledger
from advisor.run import Run

FARTHEST = ("activations.attention", "precision.compute", "precision.weights", "objective")  # what, where it is open, most often moves the total most


class Highest:
    """The high end of ``max_allocated`` that :func:`advisor.arithmetic.interval.widths` gives; ``again`` estimates what a varied run allocates."""

    __slots__ = ("_again", "_expected", "_found", "_high", "_order", "_run")

    def __init__(self, run: Run, again: Callable[[Run], Ledger]) -> None:
        self._run, self._again = run, again
        self._expected: dict[str, int] = {}
        self._order: list[tuple[int, str, list[Change]]] = []  # the unknown with their places, those first that settle most questions
        self._found: dict[int, Move] = {}
        self._high: int | None = None  # bytes, once all of them are found

    def over(self, ledger: Ledger, limit: int) -> bool:
        """Whether the high end is above ``limit`` bytes; ``ledger`` is the run's."""
        if not self._expected:
            expected = {DECIDES: ledger.expected_totals()[DECIDES].expected}
            places = [(place, field, changes) for place, (field, changes) in enumerate(unknown(self._run))]
            self._order = sorted(places, key=lambda one: one[1] not in FARTHEST)
            self._expected = expected
        while self._high is None:
            if self._with(max((move.above[DECIDES] for move in tuple(self._found.values())), default=0)) > limit:
                return True
            following = next((one for one in self._order if one[0] not in self._found), None)  # threads may ask at once: one then works in vain
            if following is not None:
                place, field, changes = following
                self._found[place] = moved(self._run, self._again, self._expected, field, changes)
            else:
                found = [self._found[place] for place in sorted(self._found)]
                self._high = self._with(joined(self._run, self._again, self._expected, found, 1)[DECIDES])
        return self._high > limit

    def _with(self, above: int) -> int:
        """So many bytes above the expected figure, and the estimator's own error."""
        _, high, _, more = own_error(self._run, DECIDES)
        return round((self._expected[DECIDES] + above) * high * more)
