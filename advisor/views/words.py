"""Text of others on a page: what a log or a config says must not be read as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.render.markdown import escape

NO_BREAK = "\u00a0"
BROKEN_LINES = 66  # pixels of a data frame's row: above 4 rem (64 pixels) Streamlit breaks a long text into lines, below it cuts the text off


def plain(text: object) -> str:
    """Text that Streamlit's Markdown shows as it is."""
    return escape(str(text)).replace("$", "\\$").replace("~", "\\~")


def share(part: int, whole: int) -> str:
    """``39%``; ``<1%`` for what is there and rounds to nothing."""
    percent = 100 * part / whole if whole else 0.0
    return "<1%" if 0 < percent < 0.5 else f"{percent:.0f}%"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table; the columns in ``right`` hold numbers, which are not torn from their units. Cells come escaped."""
    numbers = set(right)
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---:" if i in numbers else "---" for i in range(len(heads))) + " |"]
    lines += ["| " + " | ".join(cell.replace("\n", " ").replace(" ", NO_BREAK if i in numbers else " ") for i, cell in enumerate(row)) + " |" for row in rows]
    return "\n".join(lines)
