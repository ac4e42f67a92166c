"""Options that several subcommands take: the form of the output, and facts that the caller states."""

from __future__ import annotations

import argparse
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
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


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
        return dict(parse(text) for text in (*args.stated, *written))
    except StatingError as error:
        raise UserError(str(error)) from None
