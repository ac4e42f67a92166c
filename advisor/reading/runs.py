"""Several runs of one program in one text: what failed is read with the command that it was started by, not with that of a later try.

People paste what they ran first, its error, and what they ran next. A later command of the same program, below the failure, is of another run: its
settings are not those that ran out of memory. It is named with what became of it, so that no setting is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from advisor.evidence import Failure, NotUnderstood
from advisor.reading.lines import Excerpt
from advisor.reading.parts import FILES
from advisor.reading.pattern import pattern as lazily

_STARTS = lazily(
    r"^[ \t]*(?:[$>#%][ \t]+)?(?:\w+=\S*[ \t]+)*(?:torchrun|accelerate[ \t]+launch|deepspeed|(?:uv[ \t]+run[ \t]+)?python3?|srun|tune[ \t]+run|"
    r"llamafactory-cli|axolotl|trl|swift|megatron)[ \t]"
)
_PROGRAM = lazily(r"(?<![\w/.-])((?:[\w.~-]{0,80}/){0,12}\w[\w.-]{0,80}\.py)(?![\w.])|-m[ \t]+([\w.]{1,120})")
_MEMORY = ("gpu-memory", "gpu-driver", "host-memory", "engine-start")


class Start(Struct, frozen=True):
    """A command: its first and last line (from 1), the program that it runs, and its words."""

    first: int
    last: int
    program: str
    words: str


def of_one_run(name: str, text: str, failures: Sequence[Failure], log: Excerpt) -> tuple[str, list[NotUnderstood]]:
    """The text without the commands of later runs (blanked, so that line numbers stay true), and what is said of them."""
    if name.lower().endswith(FILES):
        return text, []
    starts = _starts(text)
    failed = next((_line(f) for f in failures if f.kind in _MEMORY and not f.consequence), None)
    own = next((start for start in reversed(starts) if failed is not None and start.last < failed), None)
    if own is None or failed is None:
        return text, []
    later = [start for start in starts if start.first > failed and start.program == own.program and start.words != own.words]
    if not later:
        return text, []
    lines = text.split("\n")
    said = []
    for start in later:
        end = min((s.first for s in starts if s.first > start.last), default=len(lines) + 1)
        said.append(NotUnderstood(log.where(start.first), lines[start.first - 1].strip()[:200], _became(own, start, end, failures, log)))
        for number in range(start.first, start.last + 1):
            lines[number - 1] = ""
    return "\n".join(lines), said


def _became(own: Start, start: Start, end: int, failures: Sequence[Failure], log: Excerpt) -> str:
    why = f"another run of the same program: what failed first was started in line {own.first}, and these settings are not its own"
    mine = next((f for f in failures if start.last < _line(f) < end), None)
    if mine is None:
        return why
    memory = "runs out of memory too" if mine.kind in _MEMORY else "ends with no memory error"
    return f"{why}; this one {memory} ({log.where(_line(mine))}: {mine.text[:120]})"


def _starts(text: str) -> list[Start]:
    found: list[Start] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        if _STARTS.match(lines[number][:4000]) is None:
            number += 1
            continue
        last = number
        while last + 1 < len(lines) and lines[last].rstrip().endswith("\\"):
            last += 1
        words = " ".join(" ".join(lines[number : last + 1]).replace("\\", " ").split())
        if (program := _PROGRAM.search(words[:4000])) is not None:
            found.append(Start(number + 1, last + 1, program[1] or program[2], words.lstrip("$>#% ")))
        number = last + 1
    return found


def _line(failure: Failure) -> int:
    return int(failure.where.rpartition(":")[2])
