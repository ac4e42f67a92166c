"""What the watcher found: one fault with its place and its bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["note", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. ``kind`` is a cause id of the vocabulary where there is one. ``where``: file:line. ``bytes``: what it holds, or holds more a step."""

    kind: str
    title: str
    where: str
    bytes: int = 0
    dtype: str | None = None
    part: str | None = None
    name: str | None = None  # the variable, parameter or module
    step: int = 0
    level: Level = "warning"

    def to_json(self) -> dict[str, Any]:
        """As the log holds it."""
        return {key: value for key, value in asdict(self).items() if value not in (None, 0, "")}
