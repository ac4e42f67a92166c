"""A live training run, or a job's real steps on this device, as a ledger. Importing this loads no torch; what needs it does."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {"watch": "advisor.measurement.watching.session", "Policy": "advisor.measurement.watching.policy"}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
