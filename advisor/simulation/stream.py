"""What is written down of a step: births and deaths of storages in their order, on the device and on the host, and where phases and moments begin."""

from __future__ import annotations

from collections.abc import Callable

from advisor.simulation.sites import site
from advisor.simulation.storages import Event, Storage, rounded


class Stream:
    """Collects :attr:`events` and :attr:`storages`; set :attr:`phase`, :attr:`moment`, :attr:`module` and :attr:`step` as the step goes on."""

    def __init__(self) -> None:
        self.stream: Callable[[], int] = _default_stream
        self.events: list[Event] = []
        self.storages: dict[int, Storage] = {}
        self.step, self.module = 0, ""
        self.marks: list[tuple[int, str, int]] = []  # (events before it, phase, step): where a phase begins
        self.moments: list[tuple[int, str, int]] = []  # (events before it, moment, step): where a moment of the estimate's begins
        self.host_events: list[Event] = []  # of storages that lie on the host
        self.host_moments: list[tuple[int, str, int]] = []
        self.making: tuple[str, str] | None = None  # part and name of what a function makes that runs now
        self.made: dict[int, tuple[str, str]] = {}  # what was made so, by id: for what nothing else names
        self.phase = "build"
        self.moment = "load.ready"
        self._next = 0
        self._host = self.host_peak = 0

    @property
    def phase(self) -> str:
        """The phase that runs; setting it marks its beginning."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        self.marks.append((len(self.events), name, self.step))

    @property
    def moment(self) -> str:
        """The moment that the step is at; setting it marks its beginning."""
        return self._moment

    @moment.setter
    def moment(self, name: str) -> None:
        self._moment = name
        self.moments.append((len(self.events), name, self.step))
        self.host_moments.append((len(self.host_events), name, self.step))

    def born(self, size: int, operator: str, shape: tuple[int, ...] = (), dtype: str = "", host: int | None = None) -> int:
        """Note an allocation, ``host``: of so many bytes there; returns its id."""
        number = self._next
        self._next += 1
        if self.making is not None:
            self.made[number] = self.making
        counted = rounded(size) if host is None else host
        self.storages[number] = Storage(
            counted, size, operator, self.phase, self.step, self.module, shape, dtype, site=site(), stream=self.stream(), host=host is not None
        )
        (self.events if host is None else self.host_events).append(Event(False, number))
        return number

    def died(self, number: int) -> None:
        """Note the end of an allocation."""
        (self.host_events if self.storages[number].host else self.events).append(Event(True, number))

    def saved_on_host(self, size: int) -> None:
        """Note bytes that are kept on the host, or let go of there (negative)."""
        self._host += size
        self.host_peak = max(self.host_peak, self._host)


def _default_stream() -> int:
    return 0
