"""The job file of a command line: read, joined with the facts that the caller states, resolved."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli import UserError
from advisor.commands.files import standard_input
from advisor.commands.options import overrides

if TYPE_CHECKING:
    from advisor.job import Job
    from advisor.run import Run


def load_job(name: str) -> Job:
    """A job file, or standard input for ``-``."""
    from advisor.job import MAX_JOB_BYTES, JobError, read_job

    if name == "-":
        data = standard_input(MAX_JOB_BYTES + 1)
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
        said = str(error) if str(error).startswith(name) else f"{name}: {error}"
        raise UserError(f"{said}{'' if said.endswith('?') else '.'} For logs and other configs use `advisor diagnose {name}`") from None


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
