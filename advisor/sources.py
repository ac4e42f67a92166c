"""Where a fact was read: turns a source text ("transformers 5.24 loss_utils.py") into the catalogue's entry for it."""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from advisor import knowledge


class Origin(Struct, frozen=True):
    """A code base or paper that facts come from; ``read`` is the version or date that was read."""

    id: str
    title: str
    url: str
    read: str


@cache
def origins() -> tuple[Origin, ...]:
    """Every origin of ``knowledge/sources.yaml``, the longest id first so that the nearest name wins."""
    entries = knowledge.load_yaml("sources.yaml")["sources"]
    return tuple(sorted((Origin(**entry) for entry in entries), key=lambda o: -len(o.id)))


def origin(source: str) -> Origin | None:
    """The origin that a source text starts with; ``None`` where it names none of the catalogue."""
    lowered = source.lower()
    for candidate in origins():
        start = candidate.id.lower()
        if lowered.startswith(start) and (len(lowered) == len(start) or not (lowered[len(start)].isalnum() or lowered[len(start)] == "-")):
            return candidate
    return None
