"""The training memory advisor: why a run ran out of memory, what to change first, and what each change costs.

The public names are loaded on demand, so that ``import advisor`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Job": "advisor.job",
    "read_job": "advisor.job",
    "resolve": "advisor.accepting",
    "estimate": "advisor.accepting",
    "diagnose": "advisor.live",
    "guide": "advisor.guiding",
    "plan": "advisor.accepting",
    "watch": "advisor.accepting",
}
__all__ = list(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'advisor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name not in ("import_module", "Any", "annotations", "_PUBLIC"))})
