"""The rows of a table in text, CSV or TSV: a quoted cell may hold line breaks, and the first row names the columns where it looks like names.

The loaders of data sets (pandas' ``read_csv``, and ``datasets`` through it) take the first row as the header; a first row of sentences or numbers
is none here, so that no sample is lost.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor.rows import MAX_LINE, LengthsError

SEPARATORS = (",", ";", "\t", "|")  # a comma unless the header has more columns by another
HEAD_LINE = 64 * 1024  # characters of the first line, by which the separator is told
TEXTS = frozenset(
    {"text", "content", "prompt", "completion", "response", "chosen", "rejected", "instruction", "input", "output", "question", "answer", "query"}
)
LISTS = frozenset({"messages", "conversations", "input_ids", "tokens"})  # written as JSON
_NAME = re.compile(r"\w+(?:[ ./:-]\w+){0,3}")  # as columns are named: up to four words, and no sentence's end
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{0,18})?")


def table(path: Path) -> Iterator[Any]:
    """The rows: a mapping from the column's name to the cell, or the cell alone where there is one column without a name.

    Raises:
        LengthsError: a quotation mark is left open, a row has other cells than the first, or one is longer than is read.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as handle:  # newline="": line breaks of a cell stay what they are
        lines = _Lines(path, handle)
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # of the whole process, and only ever raised; _Lines bounds the row
        separator = "\t" if path.suffix.lower() == ".tsv" else _separator(lines.first)
        names: list[str] | None = None
        width = 0
        for cells in csv.reader(lines, delimiter=separator):
            lines.row_read()
            if not cells:  # an empty line
                continue
            if not width:
                width = len(cells)
                if _is_header(cells):
                    names = [cell.strip() for cell in cells]
                    continue
            if len(cells) > width:
                raise LengthsError(
                    f"{path.name} line {lines.number} ends a row of {len(cells)} cells, and the first has {width}: a text with a {_SPOKEN[separator]} in it "
                    "needs quotation marks. If each line is a sample, give the file a name that ends in .txt"
                )
            yield _row(names, cells, width)


_SPOKEN = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}


class _Lines:
    """The lines of a file, a row's together at most :data:`MAX_LINE` characters; knows its first line and whether a row broke off at the end."""

    def __init__(self, path: Path, handle: io.TextIOBase) -> None:
        self._path, self._handle, self._held, self._ended, self.number, self._began = path, handle, 0, False, 0, 1
        self.first = handle.readline(HEAD_LINE)
        handle.seek(0)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._handle.readline(MAX_LINE)
        if not line:
            self._ended = True
            raise StopIteration
        self.number, self._held = self.number + 1, self._held + len(line)
        if self._held >= MAX_LINE:
            raise LengthsError(f"{self._path.name}: the row that begins in line {self._began} is longer than {MAX_LINE >> 20} Mi characters; {_OPEN}")
        if "\0" in line:
            raise LengthsError(f"{self._path.name} line {self.number} is no text (it holds a zero byte)")
        return line

    def row_read(self) -> None:
        """A row is complete; one for which the file's end was met has an open quotation mark."""
        if self._ended:
            raise LengthsError(f"{self._path.name}: the row that begins in line {self._began} never ends; {_OPEN}")
        self._held, self._began = 0, self.number + 1


_OPEN = "a quotation mark may be left open in it (one inside of a cell is written twice)"


def _separator(first: str) -> str:
    found = {separator: next(csv.reader([first], delimiter=separator), []) for separator in SEPARATORS}
    return max(SEPARATORS, key=lambda separator: len(found[separator]) if _is_header(found[separator]) else 0)  # the first of equals


def _is_header(cells: list[str]) -> bool:
    """Whether these are columns' names: one of them is known, or all look like names and no two are alike."""
    names = [cell.strip() for cell in cells]
    if any(name.lower() in TEXTS | LISTS for name in names):
        return True
    named = [name for name in names if name]  # pandas writes the index under no name
    return bool(named) and len(set(names)) == len(names) and all(_NAME.fullmatch(name) and not _NUMBER.fullmatch(name) for name in named)


def _row(names: list[str] | None, cells: list[str], width: int) -> Any:
    if names is None:
        return cells[0] if width == 1 else {f"column {n}": _cell("", cell) for n, cell in enumerate(cells)}
    return {name: cell if width == 1 and name not in LISTS else _cell(name, cell) for name, cell in zip(names, cells, strict=False)}


def _cell(name: str, cell: str) -> Any:
    """A cell as a typed form would hold it: a column of texts stays text, whatever its cells look like; elsewhere a number is a number."""
    if name in TEXTS:
        return cell
    if name in LISTS and cell.lstrip()[:1] == "[":
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    if _NUMBER.fullmatch(cell.strip()):
        return float(cell) if "." in cell else int(cell)
    return cell
