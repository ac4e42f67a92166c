"""After a launch that failed: was it memory, what is the top cause, what to change first."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from advisor.launching import bundle, killed, named
from advisor.launching.passing import Ended
from advisor.reading import read

MEMORY_VERDICTS_ONLY = frozenset({"not-memory", "unreadable"})


def explain(command: Sequence[str], ended: Ended, kills: int | None, where: Path | None, *, write: bool = True) -> str | None:
    """The lines to print under the output; ``None`` where it was not memory after all. Writes the bundle to ``where`` (default: here)."""
    from advisor.diagnosis import diagnose_reading
    from advisor.render import chat
    from advisor.share import link

    reading = read(items(command, ended, kills))
    report = diagnose_reading(reading)
    if report.verdict in MEMORY_VERDICTS_ONLY:
        return None
    lines = [f"advisor: {chat.report(report).rstrip()}"]
    if write:
        data = bundle.content(report, link(reading.job, reading.evidence).query, {"code": ended.code, "signal": ended.signal})
        lines.append(bundle.kept(where or bundle.default_path(), data))
    return "\n".join(lines) + "\n"


def items(command: Sequence[str], ended: Ended, kills: int | None) -> list[tuple[str, bytes | str | Path]]:
    """What the readers get: the command, the files it names, what this machine is, the output, and how it ended."""
    found: list[tuple[str, bytes | str | Path]] = [("command.sh", named.line(command, os.environ))]
    found += named.files(command)
    if (machine := _machine(command)) is not None:
        found.append(("machine.txt", machine))
    found += [(f"{name}.txt", kept.text()) for name, kept in ended.streams.items() if kept.total]
    seen = killed.told(ended, Path(command[0]).name, kills)
    if seen is not None:
        found.append(("launch.txt", seen))
    return found


def _machine(command: Sequence[str]) -> str | None:
    """What ``advisor collect`` prints, where the program runs in our own environment: else its versions would be another's."""
    program = shutil.which(command[0])
    if program is None or Path(program).parent != Path(sys.executable).parent:
        return None
    import argparse

    from advisor.commands import collect

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        collect.run(argparse.Namespace(json=False))
    return text.getvalue()
