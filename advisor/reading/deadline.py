"""Wall-clock limits of reading: one for each text, one for the whole. What was read until then is used, and the source's note says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic

from msgspec import Struct, field

from advisor.units import show_time

SECONDS = 20.0  # for everything that was handed in: 200 MB of log take some 3 s
SHARE = 0.75  # of it for one text, so that a slow one leaves time for the others


class Deadline(Struct):
    """A limit that started when it was made. ``seconds`` None: no limit."""

    seconds: float | None
    started: float = field(default_factory=monotonic)
    hit: bool = False

    def passed(self) -> bool:
        """Whether the time is over; once it is, ``hit`` stays set."""
        if self.seconds is not None and monotonic() - self.started > self.seconds:
            self.hit = True
        return self.hit

    def part(self) -> Deadline:
        """The limit of one text: a share of the whole, and never more than is left."""
        if self.seconds is None:
            return Deadline(None)
        return Deadline(max(0.0, min(SHARE * self.seconds, self.seconds - (monotonic() - self.started))))

    def until(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks that come before the time is over."""
        for chunk in chunks:
            if self.passed():
                return
            yield chunk

    @property
    def note(self) -> str | None:
        """What to say of a text that it cut short."""
        return f"only what could be read within {show_time(self.seconds or 0)} was used" if self.hit else None
