"""Hands a text to the config readers, without the parts of it that are log: a pasted file may hold both."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Protocol

from advisor.evidence import Conflict, Fact, NotUnderstood
from advisor.reading.lines import LogLine
from advisor.reading.pattern import pattern as lazily
from advisor.reading.prefixes import strip_control
from advisor.reading.tracebacks import exception_of, frame_of

_LOG = lazily(
    r"Traceback \(most recent|out of memory|Tried to allocate|NCCL (?:WARN|INFO)|MiB / |^\|.*\|$|^\s*\[rank ?\d|^\(\w+ pid=|\d{1,3}%\||"
    r"^\d{4}-\d\d-\d\d[ T]\d\d:|^\[\d{4}-\d\d-\d\d",
    re.IGNORECASE,
)


class ConfigReading(Protocol):
    """What :func:`advisor.reading.configs.read_config` returns."""

    @property
    def kind(self) -> str: ...  # noqa: D102  "axolotl config", "shell command", ...
    @property
    def facts(self) -> tuple[Fact, ...]: ...  # noqa: D102
    @property
    def seen_keys(self) -> tuple[tuple[str, str, object], ...]: ...  # noqa: D102
    @property
    def not_understood(self) -> tuple[NotUnderstood, ...]: ...  # noqa: D102
    @property
    def conflicts(self) -> tuple[Conflict, ...]: ...  # noqa: D102
    @property
    def problem(self) -> str | None: ...  # noqa: D102  'YAML bomb refused'


def read_config(name: str, text: str, *, whole: bool = False) -> ConfigReading | None:
    """The config that a text holds; ``None`` where it is none. ``whole``: no line of it is log."""
    rest = text if whole else without_log(text)
    if not rest.strip():
        return None
    configs: Any = import_module("advisor.reading.configs")  # loaded only when there is a text to read
    found: ConfigReading | None = configs.read_config(name, rest)
    return found


def without_log(text: str) -> str:
    """The text with log lines blanked, so that line numbers stay true; unchanged where none is there."""
    if not _LOG.search(text) and "Error" not in text and 'File "' not in text:
        return text
    out: list[str] = []
    code_follows = False
    for raw in text.split("\n"):
        line = strip_control(raw.rstrip("\r"))
        if len(line) > 4000:
            out.append("" if "out of memory" in line.lower() else raw)
            continue
        is_frame = frame_of(LogLine(0, line), "") is not None
        if is_frame or code_follows or _LOG.search(line) or exception_of(line) is not None:
            out.append("")
        else:
            out.append(raw)
        code_follows = is_frame
    return "\n".join(out)
