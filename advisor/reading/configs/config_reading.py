"""What was read from one config, snippet or command."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from advisor.evidence import Conflict, Fact, NotUnderstood


class ConfigReading(Struct, frozen=True):
    """``framework`` is the table that the text was read with (``None``: names of no framework in particular).

    ``problem``: why the text was refused; then nothing else is filled.
    """

    kind: str
    framework: str | None = None
    facts: tuple[Fact, ...] = ()
    seen_keys: tuple[tuple[str, str, Any], ...] = ()
    not_understood: tuple[NotUnderstood, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    problem: str | None = None
