"""The files that a command line names: what is opened to read, and what may be written over. Nothing that a person saved is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from advisor.cli import UserError
from advisor.opening import can_be_opened

HEAD = 400  # bytes by which a file of the advisor's own is known


def readable(name: str) -> Path:
    """The path of a name that can be read without waiting; one that is not there is left to who opens it. For argparse's ``type``.

    Raises:
        UserError: an empty name (it would mean the current folder), or a pipe or device, whose end may never come.
    """
    if not name.strip():
        raise UserError("a file's name is empty; name a file or a folder (. is this one)")
    path = Path(name)
    try:
        if path.exists() and not can_be_opened(path):
            raise UserError(f"{name} is neither a file nor a folder (a pipe or a device, whose end may never come); save its text in a file and name that")
    except (OSError, ValueError) as error:  # a name that no system takes: too long, or a NUL in it
        raise UserError(f"{name[:80]} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return path


def named(name: str) -> str:
    """A name that :func:`readable` accepts, as it was given; ``-`` is standard input. For argparse's ``type``."""
    return name if name == "-" else str(readable(name) and name)


def standard_input(most: int) -> bytes:
    """What standard input holds, at most so many bytes.

    Raises:
        UserError: it is closed.
    """
    if sys.stdin is None:
        raise UserError("- reads standard input, which is closed here; name a file")
    return sys.stdin.buffer.read(most)


def guard(option: str, target: Path | None, inputs: Iterable[str | Path | None], ours: Callable[[bytes], bool] = bool) -> None:
    """Refuse to write over what is read in the same command, and over a file that is none of ours.

    Args:
        option: as it is written on the command line.
        target: where something will be written; ``None``: nothing will.
        inputs: files that the command reads.
        ours: whether the first bytes of a file that is there are of the form that is written; such a file is replaced.

    Raises:
        UserError: with what would have been lost.
    """
    if target is None:
        return
    try:
        if not target.exists():
            return
        for source in inputs:
            if source is not None and str(source) != "-" and Path(source).exists() and target.samefile(source):
                raise UserError(f"{option} {target} is the file that is read, and would be lost; name another file")
        if target.is_fifo() and not can_be_opened(target):
            raise UserError(f"{option} {target} is a pipe, which may have no reader; name a file")
        if not target.is_file():
            return  # a folder is refused when it is opened; a device (/dev/null) loses nothing
        with target.open("rb") as handle:
            head = handle.read(HEAD)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None
    if head.strip() and not ours(head):
        raise UserError(f"{option} {target} is a file of another kind, and would be lost; name another file, or remove it first")
