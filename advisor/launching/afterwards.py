"""After a launch that failed: was it memory, what is the top cause, what to change first."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
import time
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
        path = where or default_path()
        try:
            bundle.write(path, data)
        except OSError:
            path = Path(tempfile.gettempdir()) / path.name
            bundle.write(path, data)
        lines.append(f"More: advisor diagnose {path}   (or drop this file on the Diagnose page)")
    return "\n".join(lines) + "\n"


def items(command: Sequence[str], ended: Ended, kills: int | None) -> list[tuple[str, bytes | str | Path]]:
    """What the readers get: the command, the files it names, what this machine is, the output, and how it ended."""
    found: list[tuple[str, bytes | str | Path]] = [("command.sh", named.line(command, os.environ))]
    found += named.files(command)
    if (machine := _machine(command)) is not None:
        found.append(("machine.txt", machine))
    found += [(f"{name}.txt", kept.text()) for name, kept in ended.streams.items() if kept.total]
    seen = killed.told(ended.pid, Path(command[0]).name, ended.signal, kills)
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


def default_path() -> Path:
    """A file of this folder, named by the time and, where several ranks are wrapped, the rank."""
    rank = os.environ.get("RANK", "")
    suffix = f"-rank{rank}" if rank.isdecimal() else ""
    return Path(f"advisor-diagnosis-{time.strftime('%Y%m%d-%H%M%S')}{suffix}.json")
