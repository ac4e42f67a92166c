"""``advisor cards``: the catalogue of GPUs."""

from __future__ import annotations

import argparse
from typing import Any

from advisor.cli import UserError
from advisor.commands import options, output
from advisor.units import show


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("only", nargs="?", default="", metavar="TEXT", help="only cards whose id or name holds this text")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List them with what a process can use."""
    from advisor import cards

    found = [c for c in cards.catalogue().values() if args.only.lower() in f"{c.id} {c.name}".lower()]
    if not found:
        raise UserError(options.none_holds("card", args.only, [name for c in cards.catalogue().values() for name in (c.id, c.name, *c.aliases)]))
    if args.json:
        from advisor.render import json

        listed: list[dict[str, Any]] = [
            {
                "id": c.id, "name": c.name, "vendor": c.vendor, "marketed_gb": c.marketed_gb, "usable_bytes": c.usable()[0], "why": c.usable()[1],
                "capability": c.capability, "supports": dict(c.supports), "unverified": sorted(c.unverified), "aliases": list(c.aliases),
            }
            for c in found
        ]  # fmt: skip
        output.write(json.text({"version": 1, "cards": listed}) + "\n")
        return 0
    width = max((len(c.id) for c in found), default=0)
    names = max((len(c.name) for c in found), default=0)
    output.write("".join(f"{c.id:<{width}}  {c.name:<{names}}  {show(c.usable()[0]):>10} usable\n" for c in found))
    return 0
