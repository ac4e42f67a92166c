"""How a group of keys and a group of fields turn into each other, both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from advisor.job import Job

AS_LOADED = "as the weights are loaded, unless something widens them"

RANK_KEY = "@key"  # replaced by the entry's own key, which differs between frameworks


def _nothing(_wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    return {}


class Derivation(Struct, frozen=True):
    """Both ways of a group of keys."""

    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Mapping[str, Any], Job], dict[str, Any]] = _nothing
    inferred: str | None = None  # why the fields are inferred rather than read
    inferred_fields: tuple[str, ...] = ()  # which of them; empty: all
    still: str | None = None  # what is not known although the keys were read: the key is listed with it
    of_paths: bool = False  # the end of a path says enough where its beginning is not known
    tolerates: tuple[str, ...] = ()  # keys that may be unknown without a word: what they would add is known otherwise
    stands_for: tuple[tuple[str, str], ...] = ()  # (a key that may be unknown, the key that says the same where it is known)
    presence: tuple[str, ...] = ()  # keys that say enough by being there, whatever their value (unless a condition chooses it: it may be none)
    samples: tuple[Mapping[str, Any], ...] = ()
