"""``advisor run -- COMMAND…``: any launch, unchanged; a memory failure is explained under its output."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli import UserError
from advisor.commands import files

if TYPE_CHECKING:
    from advisor.launching.passing import Ended

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells say it


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--bundle", metavar="FILE", type=Path, help="where to write the diagnosis of a memory failure (default: a new file in this folder)")
    parser.add_argument("--no-bundle", action="store_true", help="write no file")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the launch, e.g. -- torchrun --nproc-per-node 8 train.py")


def run(args: argparse.Namespace) -> int:
    """Launch, hand on, explain; exit code and signal are the program's. Nothing else of the advisor is loaded before it runs."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UserError("give the launch after --, e.g. advisor run -- torchrun --nproc-per-node 8 train.py")
    if os.name != "posix":
        raise UserError("advisor run needs a POSIX system; on Windows run the program as it is and give its log to `advisor diagnose`")
    files.guard("--bundle", args.bundle, [], lambda head: b"advisor_bundle" in head)
    if args.bundle is not None and not args.bundle.parent.is_dir():  # said before hours of training, not after them
        raise UserError(f"--bundle {args.bundle}: there is no folder {args.bundle.parent}; make it first, or name a file in a folder that is there")
    from advisor.launching import passing
    from advisor.launching.killed import out_of_memory_kills

    kills = out_of_memory_kills()
    sys.stdout.flush()
    try:
        ended = passing.launch(command)
    except FileNotFoundError:
        print(f"advisor: {command[0]}: there is no such command", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"advisor: {command[0]} can not be started: {error.strerror or error}", file=sys.stderr)
        return NOT_EXECUTABLE
    for why, size in ended.lost.items():  # the exit code stays the program's: it has not failed
        with contextlib.suppress(OSError):  # standard error may lie on the same full disk
            print(f"advisor: {size:,} bytes of the program's output could not be written and are lost: {why}", file=sys.stderr, flush=True)
    if ended.code:
        after = out_of_memory_kills()
        _explain(command, ended, after - kills if kills is not None and after is not None else None, args)
    if ended.signal is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        passing.end_like(ended.signal)
    return ended.code


def _explain(command: list[str], ended: Ended, kills: int | None, args: argparse.Namespace) -> None:
    """Say why, on standard error. Whatever goes wrong here leaves the program's exit code as it is."""
    from advisor.launching import killed

    try:
        said = None
        if killed.may_be_memory(ended, kills):
            from advisor.launching import afterwards

            said = afterwards.explain(command, ended, kills, args.bundle, write=not args.no_bundle)
        if said is None and killed.by_signal_9(ended):
            said = killed.note(ended, kills)
        if said is not None:
            print(f"\n{said}", file=sys.stderr, end="", flush=True)
    except Exception as error:
        print(f"advisor: this failure could not be explained ({type(error).__name__}: {error}); give the log to `advisor diagnose`", file=sys.stderr)
