"""What subcommands share: output form, overrides from the command line, the sheet to write on."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.cli import UserError

if TYPE_CHECKING:
    from advisor.job import Job
    from advisor.render.paper import Paper
    from advisor.run import Run

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


def load_job(name: str) -> Job:
    """A job file, or standard input for ``-``."""
    from advisor.job import MAX_JOB_BYTES, JobError, read_job

    if name == "-":
        data = sys.stdin.buffer.read(MAX_JOB_BYTES + 1)
    else:
        file = Path(name)
        if file.is_dir():
            raise UserError(f"{name} is a folder; name a job file (YAML or JSON, starting with 'version: 1')")
        try:
            with file.open("rb") as handle:
                data = handle.read(MAX_JOB_BYTES + 1)
        except OSError as error:
            raise UserError(f"{name} cannot be read: {_reason(error)}") from None
    if not data.strip():
        raise UserError(f"{name} is empty; a job file starts with 'version: 1'")
    if b"\0" in data[:4096]:
        raise UserError(f"{name} is a binary file; a job file is YAML or JSON text that starts with 'version: 1'")
    try:
        return read_job(data, where=name)
    except JobError as error:
        raise UserError(f"{name}: {error}. For logs and other configs use `advisor diagnose {name}`") from None


def resolved_job(args: argparse.Namespace) -> Run:
    """The job file of the command line with the stated facts, resolved."""
    from advisor.evidence import Evidence, Fact
    from advisor.job import fields
    from advisor.run import resolve
    from advisor.stating import StatingError, state

    job = load_job(args.job)
    written = tuple(Fact(path, value, "stated", where=args.job) for path in fields() if (value := job.get(path)) is not None)
    try:
        return resolve(*state(job, Evidence(facts=written), overrides(args), "command line"))
    except StatingError as error:
        raise UserError(str(error)) from None


def _reason(error: OSError) -> str:
    return {"FileNotFoundError": "there is no such file", "PermissionError": "permission is denied"}.get(type(error).__name__, str(error.strerror or error))


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
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
