"""Options for what a plan may do: keep full training, keep exactness, bring no library, stay short, leave room."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from advisor.cli import UserError
from advisor.commands import options

if TYPE_CHECKING:
    from advisor.planning import Constraints
    from advisor.report import Plan
    from advisor.run import Run

SWITCHES = {
    "keep_full_training": ("--keep-full", "no adapters, and no low-rank gradients, in place of full fine-tuning"),
    "keep_exact": ("--keep-exact", "only what gives the same numbers up to rounding"),
    "no_new_dependency": ("--no-new-dependency", "nothing that needs a library which a plain install of the trainer does not bring"),
    "keep_hardware": ("--keep-hardware", "no other or further cards"),
}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("what a plan may do")
    for name, (option, said) in SWITCHES.items():
        group.add_argument(option, action="store_true", dest=name, help=said)
    group.add_argument("--most-changes", type=int, metavar="N", help="at most so many changes")
    group.add_argument("--without", action="append", default=[], metavar="TECHNIQUE", help="never this one, by its id in the plan's --json; may be repeated")
    group.add_argument("--margin", metavar="SIZE", help="room to leave on the card, e.g. 2GiB (else the estimate's own error)")


def given(args: argparse.Namespace) -> bool:
    """Whether any was said."""
    return any(getattr(args, name) for name in SWITCHES) or bool(args.without) or args.most_changes is not None or args.margin is not None


def of(args: argparse.Namespace) -> tuple[Constraints, int | None]:
    """The constraints, and the bytes to leave free (``None``: the estimate's own error).

    Raises:
        UserError: a technique that is none, a number below one, or a size that cannot be read.
    """
    from advisor.planning import Constraints
    from advisor.techniques import all_techniques
    from advisor.units import read_size

    options.amount("--most-changes", args.most_changes, "changes")
    for name in args.without:
        if name not in all_techniques():
            raise UserError(f"--without {name!r} is no technique;{options.nearest(name, all_techniques())} the plan's --json names them, and the Library page")
    size = read_size(args.margin, default_unit="gib") if args.margin is not None else None
    if args.margin is not None and size is None:
        raise UserError(f"--margin {args.margin!r}: a size is expected, such as 2GiB or 512MiB")
    switches = {name: bool(getattr(args, name)) for name in SWITCHES}
    return Constraints(most_changes=args.most_changes, exclude=frozenset(args.without), **switches), None if size is None else size.bytes


def of_link(names: list[str]) -> tuple[Constraints, int | None]:
    """What the plan may do where one link is all that was given; nothing is limited where it says nothing, or what cannot be read."""
    from advisor.planning import Constraints
    from advisor.share import allowed_of, find_link

    query = find_link(names[0]) if len(names) == 1 and names[0].strip() else None
    return (allowed_of(query) if query is not None else None) or (Constraints(), None)


def with_fewer(found: Plan, run: Run, allow: Constraints, margin: int | None) -> Plan:
    """The plan with the fewest cards that would do; where the question has no answer, that is said on standard error."""
    from msgspec.structs import replace

    from advisor.planner.fewer import fewer_cards
    from advisor.render.fewer import NOT_ASKED

    answers = fewer_cards(run, found, allow=allow, margin_bytes=margin)
    if answers is None:
        print(f"advisor: --fewer: {NOT_ASKED}", file=sys.stderr)
    return replace(found, fewer=answers)
