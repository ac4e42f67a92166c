"""The training memory advisor: why a run ran out of memory, what to change first, and what each change costs.

The public names are loaded on demand, so that ``import advisor`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Job": "advisor.job",
    "read_job": "advisor.job",
    "resolve": "advisor.run",
    "estimate": "advisor.arithmetic",
    "diagnose": "advisor.live",
    "guide": "advisor.guiding",
    "plan": "advisor.planning",
    "watch": "advisor.measurement",
}
__all__ = list(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'advisor' has no attribute {name!r}")
