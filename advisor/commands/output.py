"""Where a subcommand writes: a sheet of the terminal's width, and standard output whatever its encoding."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from advisor.cli import printing

if TYPE_CHECKING:
    from advisor.render.paper import Paper


def sheet() -> Paper:
    """A sheet of the terminal's width; colour only on a terminal and without NO_COLOR."""
    from advisor.render.paper import Paper

    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colour = terminal and not os.environ.get("NO_COLOR")
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return Paper(width=shutil.get_terminal_size((80, 24)).columns, colour=colour, unicode=encoding.startswith("utf"))


def write(text: str) -> None:
    """Text to standard output, with letters that its encoding lacks replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    with printing():
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
