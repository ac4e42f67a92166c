"""Bytes alive now and at most, by phase and part of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Peak:
    """The most of one phase: bytes, bytes by part, and how many storages had been born until then."""

    bytes: int
    parts: dict[str, int]
    births: int


class Tally:
    """``alive``: part, bytes and number of birth by storage; those that were there from the beginning have the number 0."""

    def __init__(self, seeds: Mapping[int, tuple[str, int]]) -> None:
        self.alive: dict[int, tuple[str, int, int]] = {key: (part, size, 0) for key, (part, size) in seeds.items()}
        self.parts: dict[str, int] = {}
        for part, size in seeds.values():
            self.parts[part] = self.parts.get(part, 0) + size
        self.bytes = sum(self.parts.values())
        self.births = 0
        self._peaks: dict[str, Peak] = {"forward": Peak(self.bytes, dict(self.parts), 0)}
        self._rising: str | None = None  # the phase whose peak is now, its parts not yet copied: they are when something dies

    def born(self, key: int, part: str, size: int, phase: str) -> None:
        """A storage is there."""
        if self._rising is not None and self._rising != phase:
            self._settle()
        self.births += 1
        self.alive[key] = (part, size, self.births)
        self.bytes += size
        self.parts[part] = self.parts.get(part, 0) + size
        peak = self._peaks.get(phase)
        if peak is None:
            peak = self._peaks[phase] = Peak(-1, {}, 0)
        if self.bytes > peak.bytes:
            peak.bytes = self.bytes
            self._rising = phase

    def gone(self, key: int) -> None:
        """A storage is freed."""
        if self._rising is not None:
            self._settle()
        part, size, _ = self.alive.pop(key)
        self.bytes -= size
        self.parts[part] -= size

    def gradients(self, keys: Iterable[int]) -> None:
        """These storages, born in the backward pass, have turned out to be the parameters' gradients."""
        self._settle()
        peak = self._peaks.get("backward")
        for key in keys:
            part, size, birth = self.alive.get(key, ("gradients", 0, 0))
            if part == "gradients":
                continue
            self.alive[key] = ("gradients", size, birth)
            moved = [self.parts] if peak is None or birth > peak.births else [self.parts, peak.parts]
            for parts in moved:
                parts[part] = parts.get(part, 0) - size
                parts["gradients"] = parts.get("gradients", 0) + size

    def peaks(self) -> dict[str, tuple[int, dict[str, int]]]:
        """Bytes, and bytes by part, of each phase's most."""
        self._settle()
        return {phase: (peak.bytes, {part: size for part, size in peak.parts.items() if size}) for phase, peak in self._peaks.items()}

    def _settle(self) -> None:
        if self._rising is not None:
            peak = self._peaks[self._rising]
            peak.parts, peak.births = dict(self.parts), self.births
            self._rising = None
