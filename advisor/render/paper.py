"""The sheet that a terminal report is written on: width, colour or none, wrapped lines with hanging indents, bars."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from msgspec import Struct, field

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
NARROWEST, WIDEST = 32, 100


class Paper(Struct):
    """Lines for a terminal. ``colour`` off writes the same words without escape codes; ``unicode`` off draws bars in ASCII."""

    width: int = 80
    colour: bool = False
    unicode: bool = True
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.width = max(NARROWEST, min(WIDEST, self.width))

    def paint(self, text: str, *styles: str) -> str:
        """The text in styles, where colour is wanted."""
        codes = ";".join(_CODES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.colour and codes and text else text

    def say(self, text: str, *styles: str, indent: int = 0, hang: int | None = None) -> None:
        """A paragraph, wrapped; continued lines are indented by ``hang``."""
        for line in textwrap.wrap(
            " ".join(text.split()),
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent if hang is None else hang),
            break_on_hyphens=False,
        ) or [""]:
            self.lines.append(self.paint(line, *styles))

    def verbatim(self, text: str, *styles: str, indent: int = 0) -> None:
        """A line that is copied by the reader, so it is never wrapped."""
        self.lines.extend(" " * indent + self.paint(line, *styles) for line in text.splitlines() or [""])

    def heading(self, text: str) -> None:
        """A heading with a blank line before it."""
        if self.lines:
            self.lines.append("")
        self.say(text, "bold")

    def rows(self, rows: Sequence[tuple[str, str, float]], full: float, *, indent: int = 2) -> None:
        """Label, figure and a bar each; ``full`` is the value of the longest bar that fits."""
        labels = min(max((len(r[0]) for r in rows), default=0), max(12, self.width // 3))
        figures = max((len(r[1]) for r in rows), default=0)
        room = self.width - indent - labels - figures - 4
        for label, figure, size in rows:
            length = round(room * size / full) if full > 0 else 0
            bar = ("█" if self.unicode else "#") * min(room, max(length, 1 if size > 0 else 0)) if room >= 6 else ""
            self.lines.append(f"{' ' * indent}{label[:labels]:<{labels}}  {figure:>{figures}}  {self.paint(bar, 'cyan')}".rstrip())

    def gauge(self, size: float, limit: float, *, indent: int = 2) -> None:
        """One bar against a limit: what is over the line is drawn in another letter, and the line itself stands in it."""
        room = self.width - indent - 2
        full = max(size, limit)
        at = min(room - 1, round((room - 1) * limit / full)) if full else 0
        filled = round((room - 1) * size / full) if full else 0
        inside, over, empty = ("█", "▓", "·") if self.unicode else ("#", "!", ".")
        left = inside * min(filled, at) + empty * max(0, at - filled)
        right = over * max(0, filled - at) + empty * max(0, room - 1 - max(filled, at))
        self.lines.append(" " * indent + self.paint(left, "cyan") + self.paint("|", "bold") + self.paint(right, "red"))

    def text(self) -> str:
        """The whole sheet."""
        return "\n".join(self.lines) + "\n"
