"""The commands that a script would run, in order: the branches of ``if`` and ``case`` that are taken, functions where they are called.

A branch whose condition is not known is walked too, as "perhaps": there a variable keeps the value that it already has. Of a loop the body
is walked once, with the first of its values.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from advisor.reading.configs import shell_conditions
from advisor.reading.configs.shell_expand import Scope
from advisor.reading.configs.shell_lexer import Command

Handler = Callable[[Command, bool], None]  # a simple command, and whether it runs for sure
_OPENERS = frozenset({"if", "while", "until", "for", "select", "case"})
_MOST_RUN = 20_000
_MOST_SEARCHED = 200_000  # commands looked at for the ends of functions
_MOST_DEEP = 6


class _Frame(Struct):
    """``taken``: whether an earlier branch was (``None``: perhaps). ``runs``: whether the present part does. ``outer``: whether what is around it does."""

    kind: str
    outer: bool | None
    runs: bool | None
    taken: bool | None = False
    testing: bool = True
    value: bool | None = None
    joint: str = ""
    word: str = ""
    patterns: list[str] = field(default_factory=list)


class Flow:
    """A walk over commands. ``handle`` gets each simple one that runs, or perhaps runs."""

    def __init__(self, scope: Scope, handle: Handler) -> None:
        self.scope, self.handle = scope, handle
        self.functions: dict[str, list[Command]] = {}
        self.called: set[str] = set()
        self.depth = self.count = self.searched = 0

    def whole(self, commands: list[Command]) -> None:
        """A script, then the functions that nothing in it called."""
        self.walk(commands, True)
        for name in [n for n in self.functions if n not in self.called]:
            self.call(name, [], True)

    def walk(self, commands: list[Command], runs: bool | None) -> None:
        """Commands of one level."""
        frames: list[_Frame] = []
        at = 0
        while at < len(commands) and self.count < _MOST_RUN:
            command = commands[at]
            if (body := self._definition(commands, at)) is not None:
                at = body
                continue
            at += 1
            self.count += 1
            top = frames[-1] if frames else None
            if top is not None and top.kind == "case" and self._case(top, command):
                continue
            words = list(command.words)
            while words and (words[0] in ("then", "else", "elif", "do", "fi", "done", "esac", "{", "}", "(", "time") or words[0] in _OPENERS):
                word = words.pop(0)
                if word in _OPENERS:
                    frames.append(self._opened(word, words, frames[-1].runs if frames else runs))
                    if word in ("for", "select", "case"):
                        words = []
                elif word in ("fi", "done", "esac"):
                    if frames:
                        frames.pop()
                elif frames:
                    self._part(frames[-1], word)
            state = frames[-1].runs if frames else runs
            if not words:
                continue
            if frames and frames[-1].testing and frames[-1].kind in ("if", "while", "until"):
                self._tested(frames[-1], words, command.after)
                continue
            if state is not False:
                self._simple(Command(command.line, words, command.after, command.heredoc, command.into), state)

    def _simple(self, command: Command, state: bool | None) -> None:
        name = command.words[0]
        if name in self.functions and self.depth < _MOST_DEEP:
            self.call(name, [self.scope.text(w) for w in command.words[1:]], state)
        else:
            self.handle(command, state is True)

    def call(self, name: str, arguments: list[str], state: bool | None) -> None:
        """A function's body, with its arguments."""
        self.called.add(name)
        kept = {k: v for k, v in self.scope.variables.items() if k.isdigit()}
        for key in kept:
            del self.scope.variables[key]
        self.scope.variables |= {str(i): a for i, a in enumerate(arguments[:50], 1)}
        self.depth += 1
        self.walk(self.functions[name], state)
        self.depth -= 1
        for key in [k for k in self.scope.variables if k.isdigit()]:
            del self.scope.variables[key]
        self.scope.variables |= kept

    def _definition(self, commands: list[Command], at: int) -> int | None:
        """The position behind ``name() { ... }``, which is kept for its calls; ``None`` where none begins here."""
        words = commands[at].words
        named = words[1:] if words[:1] == ["function"] else words
        if len(named) < 1 or (named[1:2] != ["()"] and words[:1] != ["function"]):
            return None
        first = Command(commands[at].line, [w for w in named[1:] if w != "()"], commands[at].after, commands[at].heredoc)
        depth = 0
        for position in range(at, len(commands)):
            command = first if position == at else commands[position]
            self.searched += 1
            depth += command.words[:1] == ["{"]
            depth -= command.words[:1] == ["}"]
            if depth <= 0 and command.words:
                self.functions[named[0]] = [c for c in (first, *commands[at + 1 : position + 1]) if c.words]
                return position + 1
            if self.searched > _MOST_SEARCHED:
                break
        return None

    def _opened(self, kind: str, words: list[str], outer: bool | None) -> _Frame:
        if kind == "case":
            return _Frame("case", outer, False, word=words[0] if words else "")
        if kind in ("for", "select"):
            if words and outer is not False and len(words) > 2 and words[1] == "in":
                values = [v for w in words[2:] for v in self.scope.fields(w)]
                if values:
                    self.scope.variables[words[0]] = values[0]
            return _Frame("for", outer, outer, testing=False)
        return _Frame(kind, outer, False)

    def _part(self, frame: _Frame, word: str) -> None:
        """``then``, ``do``, ``elif``, ``else``: which part begins, and whether it runs."""
        if word in ("then", "do") and frame.kind in ("if", "while", "until"):
            value = frame.value
            if frame.kind == "until":
                value = None if value is None else not value
            frame.testing = False
            frame.runs = _both(frame.outer, _both(_not(frame.taken), value))
            frame.taken = True if frame.taken is True or value is True else None if value is None or frame.taken is None else False
        elif word == "elif":
            frame.testing, frame.value, frame.joint, frame.runs = True, None, "", False
        elif word == "else":
            frame.testing = False
            frame.runs = _both(frame.outer, _not(frame.taken))

    def _tested(self, frame: _Frame, words: list[str], after: str) -> None:
        value = shell_conditions.holds(words, self.scope)
        if frame.joint in ("&&", "||"):
            a, b = (frame.value, value) if frame.joint == "&&" else (_not(frame.value), _not(value))
            both = _both(a, b)
            value = both if frame.joint == "&&" else _not(both)
        elif frame.joint == "|":
            value = None
        frame.value, frame.joint = value, after

    def _case(self, frame: _Frame, command: Command) -> bool:
        """A pattern of ``case``; whether the command was one."""
        if command.words[:1] == ["esac"]:
            return False
        if frame.testing:
            frame.patterns += [w for w in command.words if w != "("]
            if command.after == ")":
                value = shell_conditions.fits(frame.word, frame.patterns, self.scope)
                frame.runs = _both(frame.outer, _both(_not(frame.taken), value))
                frame.taken = True if value is True or frame.taken is True else None if value is None or frame.taken is None else False
                frame.testing, frame.patterns = False, []
            return True
        if command.after.startswith(";;"):
            if command.words:
                self.walk([Command(command.line, command.words, "\n", command.heredoc, command.into)], frame.runs)
            frame.testing = True
            return True
        return False


def _both(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a
