"""Where in the source something happens: the innermost line that is not the framework's own."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = str(Path(os.__file__).parent) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
MAX_FRAMES = 128


@lru_cache(maxsize=4096)
def ours(name: str) -> bool:
    """Whether a file is torch's, the watcher's own, the standard library's, or made up."""
    if name.startswith((_TORCH, _OURS, "<frozen")):
        return True
    return name.startswith(_STANDARD) and _INSTALLED not in name


@lru_cache(maxsize=4096)
def shown(name: str) -> str:
    """A file as people know it: from its package on, or relative to this folder; never a home path."""
    _, installed, rest = name.rpartition(_INSTALLED)
    if installed:
        return rest
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except ValueError:
        return "/".join(Path(name).parts[-2:])


def of_function(function: Any) -> str:
    """Where a function begins."""
    code = inspect.unwrap(function).__code__
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


def here(skip: int = 1) -> str:
    """The innermost line that is not torch's: where a library, or the user, calls into torch."""
    return _line(sys._getframe(skip), installed=True)


def caller(skip: int = 1) -> str:
    """The innermost line that is the user's own (no installed package), else :func:`here`."""
    frame = sys._getframe(skip)
    return _line(frame, installed=False) or _line(frame, installed=True)


def _line(frame: FrameType | None, *, installed: bool) -> str:
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        name = frame.f_code.co_filename
        if not ours(name) and (installed or _INSTALLED not in name):
            return f"{shown(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def user_frames() -> list[FrameType]:
    """The frames of every thread that are not torch's or the watcher's, this thread's first, and in each the innermost first.

    A notebook's kernel keeps threads of its own, and each of them leads to the notebook's names, by a name that nobody wrote.
    """
    found: list[FrameType] = []
    own = sys._getframe(1)  # never our own frame: a frame that names itself lives until it is collected
    me = threading.get_ident()
    for top in (own, *(frame for thread, frame in sys._current_frames().items() if thread != me)):
        frame: FrameType | None = top
        while frame is not None:
            if not ours(frame.f_code.co_filename):
                found.append(frame)
            frame = frame.f_back
    return found
