"""What is opened at all: files, folders, and what this process already holds open. A named pipe or a device may never come to an end."""

from __future__ import annotations

from pathlib import Path

DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # a shell's <(command) and standard input: open already, so opening them waits for no one


def can_be_opened(path: Path) -> bool:
    """Whether reading a path that is there comes to an end.

    Raises:
        OSError: a name that the system does not take.
    """
    return path.is_file() or path.is_dir() or str(path).startswith(DESCRIPTORS)
