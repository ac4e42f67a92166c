"""Options that several subcommands take: the form of the output, and facts that the caller states."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from advisor.cli import UserError

# option: the job field that it states
SHORTHANDS = {
    "--gpu": "hardware.gpu",
    "--micro-batch": "batch.micro_batch",
    "--seq-len": "batch.seq_len",
    "--model": "model.name",
    "--checkpointing": "activations.checkpointing",
    "--strategy": "parallel.strategy",
    "--shard": "parallel.shard",
    "--optimizer": "optimizer.name",
}


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print everything as JSON, an error too")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """``--set FIELD=VALUE`` and its shorthands."""
    group = parser.add_argument_group("facts that you state", "they come before what was read")
    group.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="stated", help="a job field, e.g. batch.micro_batch=1; may be repeated"
    )
    for option, field in SHORTHANDS.items():
        group.add_argument(option, metavar="X", dest=f"field:{field}", help=f"the same as --set {field}=X")


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The stated facts by job field, validated one by one."""
    from advisor.stating import StatingError, parse

    written = [f"{name[6:]}={value}" for name, value in vars(args).items() if name.startswith("field:") and value is not None]
    try:
        stated = dict(parse(text) for text in (*args.stated, *written))
    except StatingError as error:
        raise UserError(str(error)) from None
    if isinstance(gpu := stated.get("hardware.gpu"), str):
        _known_card(gpu)
    return stated


def _known_card(gpu: str) -> None:
    """A card that is stated must be one of the catalogue: without its capacity every answer would be another one."""
    from advisor import cards

    if cards.find(gpu) is None:
        other = "advisor cards lists them, and --set hardware.gpu=name:mine,memory_gib:48 states another"
        raise UserError(f"{gpu!r} is no card of the catalogue;{nearest(gpu, [n for c in cards.catalogue().values() for n in (c.id, *c.aliases)])} {other}")


def none_holds(kind: str, text: str, known: Iterable[str]) -> str:
    """The sentence where a search by name finds nothing, with the nearest name."""
    return f"no {kind}'s name holds {text!r};{nearest(text, known)} `advisor {kind}s` lists all"


def nearest(text: str, known: Iterable[str]) -> str:
    """`` did you mean 'x'?`` where a known name is near."""
    import difflib

    by_name = {key: name for name in known for key in (name.lower(), name.rpartition("/")[2].lower())}
    close = difflib.get_close_matches(text.lower()[:200], list(by_name), n=1, cutoff=0.6)
    return f" did you mean {by_name[close[0]]!r}?" if close else ""


def amount(name: str, value: float | None, unit: str, *, most: float = 1e18) -> float | None:
    """A figure that must be a positive, finite number; ``None`` where it was not said."""
    if value is None or 0 < value <= most:  # nan is neither
        return value
    raise UserError(f"{name} {value:g}: a positive number of {unit} is expected, at most {most:g}")
