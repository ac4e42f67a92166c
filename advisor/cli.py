"""The command line: finds the subcommand, runs it, and turns what went wrong into one sentence.

Only the module of the chosen subcommand is imported, because ``advisor estimate`` as a whole process has 0.6 s.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

COMMANDS = {
    "diagnose": "why a run ran out of memory, and what to change first",
    "estimate": "how much memory a job needs, part by part",
    "probe": "the job's real model code run without a GPU: every tensor of the step",
    "validate": "the job's real steps on this device, measured, beside the estimate",
    "run": "any launch, unchanged: a memory failure is explained under its output",
    "events": "what a watched run (advisor.watch) found, from its log",
    "plan": "the least set of changes that makes a job fit",
    "check": "whether a job stays within a memory budget, for CI",
    "baseline": "keep an approved memory profile, and name what has drifted from it",
    "compare": "two jobs, ledgers or runs side by side",
    "lengths": "how long a data set's samples are, and the chance that a batch does not fit",
    "accuracy": "how far the estimates are from published measurements",
    "ui": "the same as pages in the browser",
    "collect": "versions, cards and settings of this machine, to paste",
    "cards": "the GPUs that are known",
    "models": "the models that are known by name",
}
SERVING = ("ui", "run")  # run long


class UserError(Exception):
    """Something that the caller can mend, or that ends the command; its message is the sentence to show.

    ``verdict`` and ``code`` are those of the contract: "unreadable", 2 unless said otherwise.
    """

    def __init__(self, message: str, *, verdict: str = "unreadable", code: int = 2) -> None:
        super().__init__(message)
        self.verdict, self.code = verdict, code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        return _answered(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        # the reader (head, less) has gone, be it of the answer or of why there is none: let the interpreter's own flush at exit meet an open descriptor
        _drop_output()
        return 141  # 128 + SIGPIPE, as a shell reports it


def _answered(arguments: list[str]) -> int:
    try:
        if sys.stdout is None:  # closed by who started this (>&-)
            sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
            if arguments[:1] not in ([name] for name in SERVING):
                raise UserError("standard output is closed, so nothing can be printed; redirect it to a file or to /dev/null")
        code = _dispatch(arguments)
        with printing():
            sys.stdout.flush()
        return code
    except UserError as error:
        return _failed(arguments, str(error), error.verdict, error.code)
    except ValueError as error:
        # what reads a job, a config or a measurement raises ValueErrors whose message is the sentence to show
        if type(error) is ValueError or not type(error).__module__.startswith("advisor."):
            raise
        return _failed(arguments, str(error), "unreadable", 2)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        print("advisor: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        from advisor.faults import strict, told

        if strict():
            raise
        return _failed(arguments, told(error), "unreadable", 2)


@contextmanager
def printing() -> Iterator[None]:
    """Around what goes to standard output.

    Raises:
        UserError: it can not be written (a full disk). A reader that has gone stays a :class:`BrokenPipeError`.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise UserError(f"standard output cannot be written: {error.strerror or error}") from None


def _drop_output() -> None:
    """What is still to be written to standard output goes nowhere: the interpreter flushes at exit, and must find nothing to complain of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(nowhere, sys.stderr.fileno())


def _failed(arguments: list[str], sentence: str, verdict: str, code: int) -> int:
    """The sentence on standard error; where JSON was asked for, a program that reads standard output gets an object too."""
    print(f"advisor: {sentence}", file=sys.stderr)
    _say_as_json(arguments, sentence, verdict, code)
    return code


def _say_as_json(arguments: list[str], sentence: str, verdict: str, code: int) -> None:
    if arguments and arguments[0] not in SERVING and "--json" in arguments[1:]:
        import json

        print(json.dumps({"version": 1, "verdict": verdict, "error": sentence, "exit_code": code}, indent=2), flush=True)


class _Parser(argparse.ArgumentParser):
    """Remembers what it complained of, and says where its help cannot be written (argparse keeps silent then)."""

    complaint = "the command line is wrong"

    def print_help(self, file: Any = None) -> None:
        with printing():
            print(self.format_help(), end="", file=file, flush=True)

    def error(self, message: str) -> NoReturn:
        _Parser.complaint = message
        super().error(message)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        with printing():
            print(_overview(), flush=True)
        return 0 if arguments else 2
    if arguments[0] in ("--version", "-V"):
        from advisor import __version__

        with printing():
            print(f"advisor {__version__}", flush=True)
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        raise UserError(f"there is no command {name!r}; {_nearest(name)}`advisor --help` lists them all")
    if name not in SERVING:
        gc.set_threshold(100_000, 20, 20)  # what is loaded and read lives until the end: looking through it again and again took a tenth of the time
    module = import_module(f"advisor.commands.{name}")
    parser = _Parser(prog=f"advisor {name}", description=COMMANDS[name][0].upper() + COMMANDS[name][1:] + ".")
    module.arguments(parser)
    try:
        args = parser.parse_args(arguments[1:])
    except SystemExit as stop:  # argparse has printed why
        if stop.code:
            _say_as_json(arguments, _Parser.complaint, "unreadable", int(stop.code))
        return int(stop.code or 0)
    return int(module.run(args))


def _nearest(name: str) -> str:
    import difflib

    found = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {found[0]!r}? " if found else ""


def _overview() -> str:
    lines = [
        "advisor: why a training run ran out of GPU memory, and what to change first",
        "",
        "usage: advisor COMMAND [options]        advisor COMMAND --help",
        "",
        *(f"  {name:<10} {says}" for name, says in COMMANDS.items()),
        "",
        "Start with what you have: advisor diagnose error.txt config.yaml     (or: ... | advisor diagnose -)",
        "Exit codes: 0 fits or tight, 1 does not fit or not memory, 2 unreadable or wrong command line, 3 a deciding fact is missing.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":  # run as a module this file is loaded twice, and its UserError with it: the imported one answers
    from advisor.cli import main as imported

    raise SystemExit(imported())
