"""Reading: text, file, folder or archive to evidence, and a job where it names one. One file a format.

The names are loaded on demand: the process that opens a memory snapshot needs none of the other readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.reading.reading import Reading, read

__all__ = ["Reading", "read"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from advisor.reading import reading

        return getattr(reading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
