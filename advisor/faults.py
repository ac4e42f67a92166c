"""A fault of ours in one part (a reader, a rule) is contained and told, so that the rest of the answer stands.

``ADVISOR_STRICT=1``, as the tests set it, lets it through: there a fault is to be found, not told.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType

STRICT = "ADVISOR_STRICT"


def strict() -> bool:
    """Whether faults are let through."""
    return os.environ.get(STRICT) == "1"


class Contained:
    """``with Contained() as fault: ...``: afterwards ``fault.said`` is ``None``, or the sentence to show."""

    __slots__ = ("said",)

    def __init__(self) -> None:
        self.said: str | None = None

    def __enter__(self) -> Contained:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, MemoryError) or strict():
            return False
        self.said = told(error)
        return True


def told(error: Exception) -> str:
    """What is said of it: the kind and the place, never a value, which may be the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {'/'.join(frames[-1].filename.replace(chr(92), '/').split('/')[-3:])}:{frames[-1].lineno}" if frames else ""
    return f"a fault of the advisor itself ({type(error).__name__}{place}), not of what you gave; please report it"
