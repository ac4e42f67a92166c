"""A measured figure beside the estimate of the same run, in every form in which a report leaves."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from advisor.units import show


class Figure(Struct, frozen=True):
    """What PyTorch had allocated at the peak of the run, or of the run with the changes that are ticked; the estimate of that same run."""

    bytes: int
    device: str
    changed: bool
    software: tuple[str, ...] = ()  # "torch 2.6.0"
    estimated_bytes: int | None = None
    told: bool = False  # by whoever shared the link: it cannot be computed again

    @property
    def which(self) -> str:
        """Which run it is of."""
        return "with the ticked changes" if self.changed else "the run as it was"

    @property
    def error(self) -> float | None:
        """Estimated over measured, less one."""
        return self.estimated_bytes / self.bytes - 1 if self.estimated_bytes else None

    def sentence(self) -> str:
        """Where, under which versions, of which run, how much, and how far off the estimate is."""
        versions = f" ({', '.join(self.software)})" if self.software else ""
        beside = f", estimated {show(self.estimated_bytes)} ({self.error:+.1%})" if self.estimated_bytes and self.error is not None else ""
        by = " This is what the link says; its estimate was computed again." if self.told else ""
        return f"Measured on {self.device}{versions}, {self.which}: {show(self.bytes)} allocated at the peak{beside}.{by}"

    def to_json(self) -> dict[str, Any]:
        """As plain data, bytes as integers."""
        return {
            "kind": "measured", "max_allocated": self.bytes, "device": self.device, "software": list(self.software), "changed": self.changed,
            "estimated": self.estimated_bytes, "from": "link" if self.told else "measurement",
        }  # fmt: skip
