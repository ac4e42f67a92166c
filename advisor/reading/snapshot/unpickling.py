"""Unpickling that can build plain values only. :func:`advisor.reading.snapshot.opcodes.scan` has looked before; this would refuse by itself too."""

from __future__ import annotations

import pickle
import warnings
from typing import IO, Any, NoReturn

from advisor.reading.snapshot.opcodes import RefusedError


class Plain(pickle.Unpickler):
    """An unpickler without names, registries and outside storage."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Refuse."""
        raise RefusedError(f"a pickle that asks to load {module[:60]}.{name[:60]}: nothing was loaded")

    def persistent_load(self, _identity: Any, /) -> NoReturn:
        """Refuse."""
        raise RefusedError("a pickle that refers to storage outside itself, as a checkpoint does")


def unpickle(file: IO[bytes]) -> Any:
    """The value in a file.

    Raises:
        RefusedError: where it is no whole pickle of plain values.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in strings of protocol 0
            return Plain(file).load()
    except RefusedError:
        raise
    except MemoryError:
        raise RefusedError("a pickle that asks for more memory than this process may have") from None
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise RefusedError(f"a pickle that cannot be read: {str(error)[:120] or type(error).__name__}") from None
