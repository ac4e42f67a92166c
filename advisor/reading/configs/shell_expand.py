"""What a shell puts in place of ``$NAME``, ``${NAME:-default}``, ``$((a + b))`` and a few harmless ``$(commands)``. Nothing is ever run."""

from __future__ import annotations

import re
from fnmatch import translate

from advisor.reading.configs.shell_lexer import array_words
from advisor.reading.configs.shell_spans import Spans
from advisor.reading.configs.shell_words import arithmetic
from advisor.reading.pattern import pattern

_NAME = pattern(r"\$([A-Za-z_]\w*|[0-9#?@*!$-])")
_BRACED = pattern(r"^([#!]?)([A-Za-z_]\w*|[0-9@*#])(?:\[([^\]]*)\])?(.*)$", re.DOTALL)
_WHOLE_ARRAY = pattern(r"^(\"?)\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?\1$")
_EXPR = pattern(r"^\s*expr\s+(.*)$", re.DOTALL)
_COUNTED = pattern(
    r"^\s*echo\s+(.+?)\s*\|\s*(?:tr\s+['\"]?,['\"]?\s+['\"]?\\n['\"]?\s*\|\s*wc\s+-l|awk\s+-F\s*['\"]?,['\"]?\s+['\"]\{\s*print\s+NF\s*\}['\"])\s*$"
)
_DEEP = 8
_MOST_NUMBERS = 1_000  # of a seq
_LONGEST = 20_000
_LONGEST_TRIMMED = 400  # a path; every length of it is tried


class Scope:
    """Variables and arrays that were assigned so far; the arguments of the function that runs are ``"1"``, ``"2"``, ..."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.spread: set[str] = set()  # names that something referred to
        self.missing: dict[str, None] = {}  # arrays that were spread and that nothing here assigned

    def fields(self, raw: str) -> list[str]:
        """The words that one raw word becomes: a variable without quotes may hold several. What is not known stays as written, with its ``$``."""
        whole = _WHOLE_ARRAY.match(raw)
        if whole is not None and whole.group(2) in self.arrays:
            self.spread.add(whole.group(2))
            found = []
            for item in self.arrays[whole.group(2)]:
                found += item.split() if " " in item and (not whole.group(1) or item.startswith("--")) else [item]
            return found
        if whole is not None and "[" in raw and whole.group(2) not in self.variables:
            self.missing[whole.group(2)] = None
            return []  # an array of another file
        parts: list[str] = []
        current, started = "", False
        for text, quoted, reference in self._pieces(raw):
            if reference and not quoted and re.search(r"\s", text) and not text.startswith(("$", "`")):
                words = text.split()
                head, *rest = words if not text[:1].isspace() else ["", *words]
                current += head
                for word in rest:
                    parts += [current] if current else []
                    current = word
                started = bool(current)
            else:
                current += text
                started = started or quoted or bool(text)
        return [*parts, current[:_LONGEST]] if started else parts

    def text(self, raw: str, depth: int = 0) -> str:
        """One word, not split."""
        return "".join(piece for piece, _, _ in self._pieces(raw, depth))[:_LONGEST]

    def _pieces(self, raw: str, depth: int = 0) -> list[tuple[str, bool, bool]]:
        """(text, quoted, from a reference) of a raw word."""
        found: list[tuple[str, bool, bool]] = []
        spans = Spans(raw)
        pos = 0
        while pos < len(raw):
            sign = raw[pos]
            if sign == "\\" and pos + 1 < len(raw):
                found.append((raw[pos + 1], True, False))
                pos += 2
            elif sign == "'" and (end := spans.closed(pos)) > pos:
                found.append((raw[pos + 1 : end - 1], True, False))
                pos = end
            elif sign == '"' and (end := spans.closed(pos)) > pos:
                found.append((self._quoted(raw[pos + 1 : end - 1], depth), True, False))
                pos = end
            elif sign in "$`":
                value, pos = self._reference(raw, pos, depth, spans)
                found.append((value, False, True))
            else:
                end = next((i for i in range(pos + 1, len(raw)) if raw[i] in "\\'\"$`"), len(raw))
                found.append((raw[pos:end], False, False))
                pos = end
        return found

    def _quoted(self, inner: str, depth: int) -> str:
        out, pos, spans = "", 0, Spans(inner)
        while pos < len(inner):
            if inner[pos] == "\\" and inner[pos + 1 : pos + 2] in ('"', "\\", "$", "`", "\n"):
                out += inner[pos + 1].strip("\n")
                pos += 2
            elif inner[pos] in "$`":
                value, pos = self._reference(inner, pos, depth, spans)
                out += value
            else:
                end = next((i for i in range(pos + 1, len(inner)) if inner[i] in "\\$`"), len(inner))
                out += inner[pos:end]
                pos = end
        return out

    def _reference(self, text: str, at: int, depth: int, spans: Spans) -> tuple[str, int]:
        """The value of what begins at ``at``, and the position behind it; what is not known stands for itself."""
        if text[at] == "`":
            end = text.find("`", at + 1)
            return (self._command(text[at + 1 : end], text[at : end + 1], depth), end + 1) if end > 0 else ("`", at + 1)
        if text.startswith("$((", at):
            end = spans.balanced(at + 1)
            inner = self.text(text[at + 3 : end - 2], depth + 1) if depth < _DEEP else ""
            return arithmetic(inner, self.variables) or text[at:end], end
        if text.startswith("$(", at):
            end = spans.balanced(at + 1)
            return self._command(text[at + 2 : end - 1], text[at:end], depth), end
        if text.startswith("${", at):
            end = spans.balanced(at + 1)
            return self._braced(text[at + 2 : end - 1], text[at:end], depth), end
        match = _NAME.match(text, at)
        if match is None:
            return "$", at + 1
        name = match.group(1)
        if name == "#":
            return str(sum(key.isdigit() for key in self.variables)), match.end()
        self.spread.add(name)
        if name in self.arrays and name not in self.variables:
            return (self.arrays[name] or [""])[0], match.end()
        return self.variables.get(name, match.group(0)), match.end()

    def _braced(self, inner: str, whole: str, depth: int) -> str:
        match = _BRACED.match(inner)
        if match is None or depth > _DEEP:
            return whole
        sign, name, index, rest = match.groups()
        if sign == "#" and name in self.arrays:
            return str(len(self.arrays[name]))
        value = self._value(name, index)
        if sign:
            return str(len(value)) if sign == "#" and value is not None else whole
        if not rest:
            return whole if value is None else value
        return self._changed(value, rest, whole, depth)

    def _value(self, name: str, index: str | None) -> str | None:
        self.spread.add(name)
        if index is not None and name in self.arrays:
            items = self.arrays[name]
            if index in ("@", "*"):
                return " ".join(items)
            at = arithmetic(index, self.variables)
            return items[int(at)] if at is not None and 0 <= int(at) < len(items) else None
        return self.variables.get(name)

    def _changed(self, value: str | None, rest: str, whole: str, depth: int) -> str:
        """``:-default`` and its kin, ``%suffix``, ``#prefix``, ``/from/to``, ``,,``."""
        head, argument = (rest[:2], rest[2:]) if rest[:1] == ":" else (rest[:1], rest[1:])
        if head in (":-", "-", ":=", "=", ":?", "?"):
            if value or (value is not None and head[0] != ":"):
                return value
            return whole if head.endswith("?") else self.text(argument, depth + 1)
        if head in (":+", "+"):
            return self.text(argument, depth + 1) if value else ""
        if value is None or len(argument) > 200:
            return whole
        if rest in (",,", "^^"):
            return value.lower() if rest == ",," else value.upper()
        if head in ("%", "#"):
            greedy = argument.startswith(head)
            return _trimmed(value, self.text(argument[greedy:], depth + 1), head, greedy)
        if head == "/":
            every = argument.startswith("/")
            before, _, after = argument[every:].partition("/")
            return value.replace(self.text(before, depth + 1), self.text(after, depth + 1), -1 if every else 1) if before else whole
        return whole

    def _command(self, inner: str, whole: str, depth: int) -> str:
        """``$(expr 16 / 4)``, ``$(echo ..)``, ``$(basename ..)`` and the count of a comma-separated list; nothing else."""
        if depth > _DEEP:
            return whole
        if (match := _EXPR.match(inner)) is not None:
            return arithmetic(self.text(match.group(1), depth + 1), self.variables) or whole
        if (match := _COUNTED.match(inner)) is not None:
            listed = self.text(match.group(1), depth + 1)
            return whole if "$" in listed else str(listed.count(",") + 1)
        words = array_words(inner)
        if words[:1] == ["seq"]:
            return _sequence([self.text(word, depth + 1) for word in words[1:]]) or whole
        if len(words) > 1 and "|" not in inner and words[0] in ("echo", "basename"):
            text = " ".join(self.text(word, depth + 1) for word in words[1 : 2 if words[0] == "basename" else None])
            return whole if "$" in text else text.rstrip("/").rsplit("/", 1)[-1] if words[0] == "basename" else text
        return whole


def _sequence(bounds: list[str]) -> str | None:
    """``seq LAST``, ``seq FIRST LAST``, ``seq FIRST STEP LAST``, of whole numbers."""
    if not 1 <= len(bounds) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", word) for word in bounds):
        return None
    numbers = [int(word) for word in bounds]
    first, step, last = numbers[0] if len(numbers) > 1 else 1, numbers[1] if len(numbers) == 3 else 1, numbers[-1]
    if step == 0 or abs(last - first) // abs(step) >= _MOST_NUMBERS:
        return None
    return " ".join(str(number) for number in range(first, last + (1 if step > 0 else -1), step))


def _trimmed(value: str, pattern: str, side: str, greedy: bool) -> str:
    """``value`` without the shortest (or longest) part at one side that the pattern matches."""
    if len(value) > _LONGEST_TRIMMED or len(pattern) > 40:
        return value
    expression = re.compile(translate(pattern))
    lengths = range(len(value) + 1) if not greedy else range(len(value), -1, -1)
    for length in lengths:
        part = value[:length] if side == "#" else value[len(value) - length :]
        if expression.match(part):
            return value[length:] if side == "#" else value[: len(value) - length]
    return value
