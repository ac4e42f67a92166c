"""``advisor compare A B``: two jobs, ledgers or runs side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from advisor.cli import UserError
from advisor.commands import files, output

if TYPE_CHECKING:
    from advisor.compare import Side


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "a",
        metavar="A",
        type=files.named,
        help="a job file, a framework's config, the --json of estimate, probe or validate, a memory snapshot, a watched run's log, a folder, a baseline",
    )
    parser.add_argument("b", metavar="B", type=files.named, help="likewise: what A became")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON, an error too")
    form.add_argument("--markdown", action="store_true", help="print a comment fit for a pull request")


def run(args: argparse.Namespace) -> int:
    """Print what differs; the exit code is 0 whatever it is."""
    from advisor import compare
    from advisor.units import show, signed

    found = compare.compare(side(args.a), side(args.b))
    if args.json:
        from advisor.render import json

        output.write(json.text({"version": 1, **msgspec.to_builtins(found)}) + "\n")
        return 0
    if args.markdown:
        output.write(compare.markdown(found))
        return 0
    paper = output.sheet()
    before, after = found.a.totals.get("max_allocated", 0), found.b.totals.get("max_allocated", 0)
    paper.say(f"Peak: {show(before)} in {found.a.phase} ({found.a.kind}), {show(after)} in {found.b.phase} ({found.b.kind}): {signed(after - before)}.", "bold")
    for title, rows in found.tables:
        paper.heading(title)
        for row in rows:
            paper.say(f"{row.name}: {show(row.a or 0)} to {show(row.b or 0)} ({signed(row.difference)})", indent=2, hang=4)
    if found.settings:
        paper.heading("Settings")
    for path, x, y in found.settings:
        paper.say(f"{path}: {x} to {y}", indent=2, hang=4)
    for label, names in (("new copy", found.copies_new), ("copy gone", found.copies_gone)):
        for name in names:
            paper.say(f"{label}: {name}", indent=2)
    for name, old, new in found.kernels:
        paper.say(f"attention in {name}: {old or 'none'} to {new or 'none'}", indent=2)
    for name, old, new in found.software:
        paper.say(f"{name}: {old or 'none'} to {new or 'none'}", indent=2)
    output.write(paper.text())
    return 0


def side(name: str) -> Side:
    """One side of a comparison, from any file that has one.

    Raises:
        UserError: the file can not be read or is none.
    """
    from pathlib import Path

    from advisor import baseline, sides

    path = Path(name)
    try:
        if path.is_file():
            with path.open("rb") as handle:
                if baseline.is_one(handle.read(files.HEAD)):
                    return baseline.read(path)[0]
        return sides.load(path)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from None
