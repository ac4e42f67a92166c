"""``advisor baseline save|approve|check``: an approved memory profile, and what has drifted from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli import UserError
from advisor.commands import files, output

if TYPE_CHECKING:
    from advisor.annotating import Check


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="save|approve|check")
    save = actions.add_parser("save", help="write the profile of a job, a ledger's JSON, a snapshot or a watched run")
    save.add_argument("source", metavar="JOB", type=files.named, help="a job file, or anything else that `advisor compare` takes")
    save.add_argument("--to", type=Path, metavar="FILE", help="default: JOB with .baseline.yaml")
    approve = actions.add_parser("approve", help="mark a profile as approved, after review")
    approve.add_argument("file", type=files.readable, metavar="FILE")
    check = actions.add_parser("check", help="name what has drifted; exit code 1 where something has")
    check.add_argument("file", type=files.readable, metavar="FILE")
    check.add_argument("source", metavar="JOB", type=files.named, help="a job file, or anything else that `advisor compare` takes")
    check.add_argument("--tolerance", type=float, default=3.0, metavar="PERCENT", help="how much the peak may grow (default 3)")
    add_forms(check)


def add_forms(parser: argparse.ArgumentParser) -> None:
    """``--junit FILE`` and ``--github``."""
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the checks as JUnit XML")
    parser.add_argument("--github", action="store_true", help="print GitHub annotations")


def guard_junit(args: argparse.Namespace, *inputs: str | Path) -> None:
    """``--junit`` replaces a report like itself and nothing else."""
    files.guard("--junit", args.junit, inputs, lambda head: b"<testsuite" in head)


def run(args: argparse.Namespace) -> int:
    """Save, approve or check."""
    from advisor import annotating, baseline
    from advisor.commands.compare import side

    if args.action == "save":
        target = args.to or Path(f"{Path(args.source).with_suffix('').name}.baseline.yaml")
        files.guard("--to", target, [args.source], baseline.is_one)
        _writing(target, lambda: baseline.write(target, baseline.content(side(args.source))))
        output.write(f"wrote {target}; review it, then `advisor baseline approve {target}`\n")
        return 0
    if not args.file.is_file():
        raise UserError(f"{args.file}: there is no such baseline; `advisor baseline save JOB --to {args.file}` writes one")
    if args.action == "approve":
        _writing(args.file, lambda: baseline.approve(args.file))
        output.write(f"{args.file} is approved\n")
        return 0
    guard_junit(args, args.file, args.source)
    approved, day = baseline.read(args.file)
    if day is None:
        raise UserError(f"{args.file} is not approved yet; review it, then `advisor baseline approve {args.file}`")
    found = baseline.drift(approved, side(args.source), args.tolerance / 100)
    checks = [annotating.Check(name, "; ".join(d.text for d in found if d.check == name) or None) for name in baseline.CHECKS]
    report(args, f"memory baseline {args.file.name}", checks, str(args.file))
    return 1 if found else 0


def report(args: argparse.Namespace, title: str, checks: list[Check], file: str | None) -> None:
    """Print the checks in the forms asked for."""
    from advisor import annotating

    if args.junit is not None:
        _writing(args.junit, lambda: args.junit.write_text(annotating.junit(title, checks), encoding="utf-8"))
    if args.github:
        output.write(annotating.github(title, checks, file))
        return
    worse = "DRIFT" if "baseline" in title else "OVER"
    said = ["ok" if check.failed is None else worse for check in checks]
    for word, check in zip(said, checks, strict=True):
        output.write(f"{word.ljust(max(map(len, said)))} {check.name}{': ' + check.failed if check.failed else ''}\n")


def _writing(path: Path, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
