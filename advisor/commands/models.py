"""``advisor models``: the models whose shape is known by name."""

from __future__ import annotations

import argparse

from advisor.cli import UserError
from advisor.commands import options, output
from advisor.units import show_count


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("only", nargs="?", default="", metavar="TEXT", help="only models whose name holds this text")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List them with their parameters."""
    from advisor.architecture.presets import find, names

    asked = _letters(args.only)  # llama3 is in Meta-Llama-3-8B
    found = [(name, find(name)) for name in names() if args.only.lower() in name.lower() or (asked and asked in _letters(name))]
    if not found:
        raise UserError(options.none_holds("model", args.only, names()))
    if args.json:
        from advisor.render import json

        output.write(json.text({"version": 1, "models": [{"name": n, "parameters": a.parameters if a else None} for n, a in found]}) + "\n")
        return 0
    width = max((len(name) for name, _ in found), default=0)
    lines = [f"{n:<{width}}  {show_count(a.parameters) if a else 'not read':>9}\n" for n, a in found]
    output.write("".join(lines))
    return 0


def _letters(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum() or sign in "./")
