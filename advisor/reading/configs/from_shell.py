"""Shell scripts and commands: launchers, programs, their flags and overrides, and environment variables. Words are taken apart, nothing is run."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate, islice

from advisor.frameworks.key import Key
from advisor.reading.configs import shell_documents, slurm
from advisor.reading.configs.parsed import Parsed
from advisor.reading.configs.shell_arguments import NO_PROGRAM, Arguments
from advisor.reading.configs.shell_expand import Scope
from advisor.reading.configs.shell_flow import Flow
from advisor.reading.configs.shell_lexer import Command, array_words, commands
from advisor.reading.configs.shell_prefixes import prefix
from advisor.reading.configs.shell_starters import LABELS
from advisor.reading.configs.shell_words import literal
from advisor.reading.pattern import pattern

_ASSIGNMENT = pattern(r"^([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)$", re.DOTALL)
_SHELLS = frozenset({"sbatch", "bash", "sh", "ssh"})
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_WORDS = 12_000
_ITEMS = 4_000  # words of one array


def parse(text: str) -> Parsed:
    """The keys of every command that a script runs. Variables and arrays stand for the words that were assigned to them in the same script."""
    parsed = Parsed("shell")
    text = LABELS.sub(r"\1", text)
    reader = _Script(parsed, text)
    prompts = r"^[ \t]*[$>][ \t]+" if re.search(r"^[ \t]*\$[ \t]", text, re.MULTILINE) else r"^[ \t]*\$[ \t]+"
    reader.directives()
    reader.script(re.sub(prompts, "", text, flags=re.MULTILINE))  # a session pasted with its prompts
    reader.unused()
    reader.elsewhere()
    parsed.comments = [(i, m.group(1)) for i, line in enumerate(text.splitlines(), 1) if (m := re.search(r"(?:^|\s)#(?!!)\s*(\S.*)$", line))]
    return parsed


class _Script:
    """The state of a script while its commands are taken apart: what was assigned so far."""

    def __init__(self, parsed: Parsed, text: str) -> None:
        self.parsed = parsed
        self.text = text
        self.lines = text.split("\n")
        self.offsets = [0, *accumulate(len(line) + 1 for line in self.lines)]
        self.scope = Scope()
        self.flow = Flow(self.scope, self.command)
        self.arguments = Arguments(parsed, self.where, self._nested, self.program)
        self.depth = 0
        self.sourced: list[tuple[int, str, str]] = []  # (line, text, path) of the scripts that are read in
        self.batch: dict[str, str] = {}  # Slurm's options of the whole script; those of an srun stand over them

    def directives(self) -> None:
        """``#SBATCH`` lines: what the job asks Slurm for, and the variables that Slurm sets by it."""
        at: dict[str, int] = {}
        for number, line in enumerate(self.lines, 1):
            if line.startswith("#SBATCH"):
                given = slurm.directive(line)
                self.batch |= given
                at |= dict.fromkeys(given, number)
        for key, value, option in slurm.asked(self.batch):
            number = at.get(option, 1)
            self.parsed.add(Key(key, value, number, self.lines[number - 1].strip()[:500], "srun"))
        self.scope.variables |= slurm.variables(self.batch)

    def script(self, text: str) -> None:
        """All commands of a text."""
        self.flow.whole(commands(text))

    def unused(self) -> None:
        """Arrays and texts of flags that no command here uses: a file of arguments that another script reads."""
        texts = {name: value.split() for name, value in self.scope.variables.items() if re.match(r"\s*--\w", value)}
        for name, words in (self.scope.arrays | texts).items():
            at = 0
            while name not in self.scope.spread and at < len(words):
                at = self.arguments.flag(words, at, 1, "program") if words[at].startswith("-") else at + 1

    def elsewhere(self) -> None:
        """Scripts that this one reads in, where it uses arrays that are not assigned here: the shape of the model, most often."""
        names = ", ".join(list(self.scope.missing)[:5])
        for line, text, path in self.sourced if names else ():
            self.parsed.add(Key("source", path, line, text, scope="env"))
            self.parsed.notes.append((line, f"source = {path}", f"this script may set {names}, which the command is given; give it too"))

    def where(self, word: str, start: int) -> tuple[int, str]:
        """The line of a word: from the command's start on, else anywhere (an array stands before its use)."""
        offset = self.offsets[min(max(start - 1, 0), len(self.offsets) - 1)]
        at = self.text.find(word, offset)
        if at < 0:
            at = self.text.find(word)
        number = bisect_right(self.offsets, at) if at >= 0 else start
        return number, self.lines[number - 1].strip()[:500] if 0 < number <= len(self.lines) else ""

    def command(self, command: Command, sure: bool) -> None:
        """Take one command apart."""
        raw = command.words
        if not raw:  # a bracket alone
            return
        if raw[0] == ":":  # : "${NAME:=default}"
            self._defaults(raw[1:])
            return
        if raw[0] == "read":
            self._read(command)
            return
        if raw[0] in ("source", ".") and len(raw) > 1:
            self.sourced.append((*self.where(raw[1][:40], command.line), self.scope.text(raw[1])))
        if raw[0] in _DECLARES:
            raw = [w for w in raw[1:] if not w.startswith("-")]
        while raw and (match := _ASSIGNMENT.match(raw[0])) is not None:
            self.assign(match.group(1), bool(match.group(2)), match.group(3), command.line, sure)
            raw = raw[1:]
        if command.heredoc is not None and raw[:1] and raw[0] in _SHELLS:  # sbatch <<EOF: a script of its own
            self._nested(self.scope.text('"' + command.heredoc.replace('"', '\\"') + '"'), command.line + 1)
            return
        if command.heredoc is not None:
            shell_documents.read(command.heredoc, command.line, raw, self.scope, self.parsed)
        words = list(islice((field for word in raw for field in self.scope.fields(word)), _WORDS))
        while words and (match := _ASSIGNMENT.match(words[0])) is not None and not match.group(2):  # env NAME=value command
            self.assign(match.group(1), False, match.group(3), command.line, sure, expanded=True)
            words = words[1:]
        if words and (words[0] not in NO_PROGRAM or words[1:2] == ["run"]) and command.words[0] not in _DECLARES:
            self.program(words, command.line)

    def assign(self, name: str, appends: bool, raw: str, line: int, sure: bool, *, expanded: bool = False) -> None:
        """``NAME=value``, ``NAME+=value``, ``NAME=(words)``. Where it is not sure that this runs, a value that is there stays."""
        scope = self.scope
        if raw.startswith("(") and raw.endswith(")") and not expanded:
            words = list(islice((field for word in array_words(raw[1:-1]) for field in scope.fields(word)), _ITEMS))
            old = scope.arrays.get(name, [])
            if appends:
                scope.arrays[name] = [*old, *words][:_ITEMS] if sure or words[:1] != old[-len(words) :][:1] else old
            elif sure or name not in scope.arrays:
                scope.arrays[name] = words
            return
        value = raw if expanded else scope.text(raw)
        if appends:
            value = scope.variables.get(name, "") + value
        elif not sure and name in scope.variables:
            return
        scope.variables[name] = value[:10_000]
        self.parsed.add(Key(name, literal(value), *self.where(name + "=", line), scope="env"))

    def _defaults(self, words: list[str]) -> None:
        for word in words:
            if (match := re.match(r"^\"?\$\{(\w+):?=(.*)\}\"?$", word, re.DOTALL)) is not None and match.group(1) not in self.scope.variables:
                self.scope.variables[match.group(1)] = self.scope.text(match.group(2))

    def _read(self, command: Command) -> None:
        """``read -r -d '' NAME <<EOF``: the document is the variable's value."""
        if command.heredoc is not None and re.match(r"^[A-Za-z_]\w*$", command.words[-1]):
            self.scope.variables[command.words[-1]] = self.scope.text('"' + command.heredoc.replace('"', '\\"') + '"').replace("\\\n", " ").strip()

    def program(self, words: list[str], start: int) -> None:
        """A program, its launcher, and what is given to it; what only starts it (srun, env, docker run) is taken off first."""
        if (before := prefix(words)) is not None:
            text = " ".join(words[: before.at])[:500]
            line = self.where(words[0], start)[0]
            keys = [*before.keys]
            if before.slurm is not None and any(name in slurm.WANTED for name in before.slurm):
                given = self.batch | before.slurm
                keys += [(key, value) for key, value, _ in slurm.asked(given)]
                self.scope.variables |= slurm.variables(given)
            for key, value in keys:
                self.parsed.add(Key(key, value, line, text, "srun"))
            for item in before.sets:
                name, _, value = item.partition("=")
                if name.isidentifier():
                    self.assign(name, False, value, start, True, expanded=True)
            if before.wrapped is not None:
                self._nested(before.wrapped, start)
            if before.at < len(words):
                self.program(words[before.at :], start) if not before.own else self.arguments.take(words[before.at :], start)
            return
        self.arguments.take(words, start)

    def _nested(self, text: str, start: int) -> None:
        """A command within one word: ``bash -c "torchrun ..."``."""
        if self.depth < 3:
            self.depth += 1
            for inner in commands(text):
                inner.line += start - 1
                self.command(inner, True)
            self.depth -= 1
