"""A shell script as commands of raw words: quotes, continuation lines, arrays, here-documents and redirections are understood; nothing is expanded or run.

What follows is POSIX.1-2024 "Shell Command Language" and bash 5.2's manual, and more lenient where people paste: a blank behind a
backslash, a comment between continued lines, ``<placeholder>`` and an open quote are not what ends a command.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from advisor.reading.configs.shell_spans import Spans
from advisor.reading.pattern import pattern

_PLAIN = pattern(r"[^\s\\'\"`$();&|<>]+")
_CONTINUED = pattern(r"\\[ \t]*(?:#[^\n]*)?\n")
_ARRAY = pattern(r"^[A-Za-z_]\w*\+?=$")
_PLACEHOLDER = pattern(r"<[A-Za-z][\w ,./:'-]{0,80}>")
_HEREDOC = pattern(r"<<(-?)[ \t]*(['\"\\]?)([A-Za-z_]\w*)['\"]?")
_REDIRECT = pattern(r"&>>?|[<>]&-?\d*-?|>>|>\||<>|<<<|[<>]")
_OPERATOR = pattern(r";;&?|;&|&&|\|\||\|&|[;&|()]")
_MOST_COMMANDS = 20_000


class Command(Struct):
    """``words`` are raw (quotes and references as written), ``after`` is what ended it, ``heredoc`` what ``<<EOF`` gave it to read."""

    line: int
    words: list[str] = field(default_factory=list)
    after: str = "\n"
    heredoc: str | None = None
    into: str | None = None  # the file that its output goes to


def commands(text: str) -> list[Command]:
    """The commands in the order of the text, at most 20,000."""
    return _Lexer(text).run()


def array_words(raw: str) -> list[str]:
    """The raw words between the parentheses of ``NAME=( ... )``: newlines and comments part them."""
    return [word for command in commands(raw) for word in command.words]


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.pos, self.line = text, 0, 1
        self.spans = Spans(text)
        self.found: list[Command] = []
        self.current = Command(1)
        self.word = ""
        self.started = False  # a word has begun, though it may be empty: ""
        self.drops: str | None = None  # the next word belongs to this redirection
        self.continued = False
        self.pending: list[tuple[str, Command, bool]] = []

    def run(self) -> list[Command]:
        text = self.text
        while self.pos < len(text) and len(self.found) < _MOST_COMMANDS:
            sign = text[self.pos]
            if plain := None if sign == "#" and not self.started else _PLAIN.match(text, self.pos):
                self.take(plain.end())
            elif sign == "\n":
                self.newline()
            elif sign.isspace():
                self.end_word()
                self.pos += 1
            elif sign == "\\":
                if (match := _CONTINUED.match(text, self.pos)) is not None:
                    self.end_word()
                    self.advance(match.end())
                    self.continued = True
                else:
                    self.take(min(self.pos + 2, len(text)))
            elif sign == "#":
                end = text.find("\n", self.pos)
                self.pos = len(text) if end < 0 else end
                if self.continued and end >= 0:  # a comment between continued lines
                    self.advance(end + 1)
            elif sign in "'\"`$":
                self.take(self.span(sign))
            else:
                self.operator(sign)
        self.end_command("\n")
        return self.found

    def span(self, sign: str) -> int:
        """Where a quoted text or a reference ends."""
        text, pos = self.text, self.pos
        if sign in "'\"":
            return max(self.spans.closed(pos), pos + 1)
        if sign == "`":
            end = text.find("`", pos + 1, pos + 2_000)
            return end + 1 if end >= 0 else pos + 1
        if text.startswith(("$(", "${"), pos):
            return self.spans.balanced(pos + 1)
        if text.startswith(("$'", '$"'), pos):
            return max(self.spans.closed(pos + 1), pos + 1)
        return pos + 1

    def operator(self, sign: str) -> None:
        """Brackets, separators and redirections."""
        text, pos = self.text, self.pos
        if sign == "(" and _ARRAY.match(self.word):
            self.take(self.spans.balanced(pos))
        elif text.startswith("((", pos) and not self.started and (end := self.spans.balanced(pos)) > pos + 1:
            self.take(end)
        elif sign == "(" and re.match(r"\(\s*\)", text[pos : pos + 20]):
            self.end_word()
            self.current.words.append("()")
            self.pos = text.index(")", pos) + 1
        elif sign == "<" and (match := _PLACEHOLDER.match(text, pos)) is not None:
            self.take(match.end())
        elif sign == "<" and (match := _HEREDOC.match(text, pos)) is not None and not text.startswith("<<<", pos):
            self.end_word()
            self.pending.append((match.group(3), self.current, bool(match.group(1))))
            self.pos = match.end()
        elif text.startswith(("<(", ">("), pos):
            self.take(self.spans.balanced(pos + 1))
        elif (match := _REDIRECT.match(text, pos)) is not None:
            if self.word.isdigit():
                self.word, self.started = "", False
            self.end_word()
            self.pos = match.end()
            if not match.group(0)[-1].isdigit() and match.group(0)[-1] != "-":
                self.drops = match.group(0)
        else:
            end = match.end() if (match := _OPERATOR.match(text, pos)) is not None else pos + 1
            self.end_command(text[pos:end])
            self.pos = end

    def newline(self) -> None:
        self.end_command("\n")
        self.advance(self.pos + 1)
        for word, command, tabs in self.pending:
            indent = r"[ \t]*" if tabs else ""
            end = re.compile(rf"^{indent}{re.escape(word)}[ \t\r]*$", re.MULTILINE).search(self.text, self.pos)
            body = self.text[self.pos : end.start() if end else len(self.text)]
            command.heredoc = body
            self.advance(end.end() if end else len(self.text))
        self.pending = []

    def take(self, end: int) -> None:
        """Add the text up to ``end`` to the word."""
        if not self.started and not self.current.words:
            self.current.line = self.line
        part = self.text[self.pos : end]
        self.word += part
        self.started, self.continued = True, False
        self.line += part.count("\n")
        self.pos = end
        if self.word == "[[":
            close = self.text.find("]]", end, end + 2_000)
            if close >= 0:
                self.word = self.text[end - 2 : close + 2]
                self.advance(close + 2)

    def advance(self, end: int) -> None:
        self.line += self.text.count("\n", self.pos, end)
        self.pos = end

    def end_word(self) -> None:
        if not self.started:
            return
        if self.drops is not None:
            if ">" in self.drops:
                self.current.into = self.word
            self.drops = None
        else:
            self.current.words.append(self.word)
        self.word, self.started = "", False

    def end_command(self, after: str) -> None:
        self.end_word()
        self.drops = None
        self.continued = False
        if self.current.words or after in (")", ";;"):
            self.current.after = after
            self.found.append(self.current)
        self.current = Command(self.line)
