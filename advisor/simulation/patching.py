"""Replaces attributes of modules and classes while a context is open, and puts them back as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def patched(patches: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """``(owner, name, replacement)``: set in order, undone in reverse; an attribute that was inherited is inherited again."""
    undo: list[tuple[Any, str, bool, Any]] = []
    try:
        for owner, name, replacement in patches:
            own = name in vars(owner)
            undo.append((owner, name, own, vars(owner).get(name)))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, own, before in reversed(undo):
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)
