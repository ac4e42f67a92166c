"""Shell commands: launchers, programs, their flags and overrides, and environment variables. Words are taken apart, nothing is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from advisor.frameworks.key import Key
from advisor.reading.configs.parsed import Parsed
from advisor.reading.configs.shell_words import arithmetic, commands, literal, split

_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_OVERRIDE = re.compile(r"^[+~]{0,2}([A-Za-z_][\w./\-@]*)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}?")
_LAUNCHERS = {"torchrun": "torchrun", "deepspeed": "deepspeed", "srun": "srun", "mpirun": "srun"}
_LAUNCH_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "deepspeed.launcher.runner": "deepspeed"}
_RUNNERS = frozenset(
    {"python", "python3", "uv", "run", "poetry", "nohup", "sudo", "env", "time", "exec", "bash", "sh", "conda", "stdbuf", "numactl", "ipython"}
)
_ARRAY = re.compile(r"^\s*(?:declare -a |local )?([A-Za-z_]\w*)(\+?)=\((.*)\)\s*$", re.DOTALL)
_REFERENCE = re.compile(r"^\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?$")
_SUM = re.compile(r"\$\(\((.{1,200}?)\)\)(?!\))")
_WORDS = 20_000
_LAUNCHER_SCOPES = frozenset({"torchrun", "deepspeed", "accelerate launch", "srun"})
_TAKES_FILE = frozenset({"config_file", "config-file", "hostfile"})
_NO_PROGRAM = frozenset(
    {"echo", "cd", "mkdir", "ls", "cat", "pip", "git", "if", "fi", "then", "else", "elif", "for", "done", "do", "while", "ulimit", "module", "source", "sleep"}
    | {"pkill", "grep", "rm", "cp", "set", "test", "[", "[[", "local", "function", "case", "esac", "wait", "exit", "return", "read", "printf", "."}
)
_SCRIPT = re.compile(r"\.(py|sh|ya?ml|toml)$")
STARTERS = re.compile(
    r"^\s*(?:[$>#]\s+)?(?:export\s+)?(?:[A-Z_][A-Z0-9_]*=\S*\s+)*(torchrun|accelerate\s+launch|deepspeed|python3?|tune\s+run|litgpt|swift|megatron|trl|axolotl|"
    r"llamafactory-cli|srun|ray\s+job|composer|xtuner|fairseq-train|NPROC_PER_NODE=|uv\s+run|bash|colossalai|export\s+\w+=)\b",
    re.MULTILINE,
)


def parse(text: str) -> Parsed:
    """The keys of every command of a script. Variables and arrays stand for the words that were assigned to them in the same script."""
    parsed = Parsed("shell")
    reader = _Script(parsed, text)
    for number, command in commands(text):
        reader.command(command, number)
    reader.unused()
    parsed.comments = [(i, m.group(1)) for i, line in enumerate(text.splitlines(), 1) if (m := re.search(r"(?:^|\s)#(?!!)\s*(\S.*)$", line))]
    return parsed


class _Script:
    """The state of a script while its commands are taken apart: what was assigned so far."""

    def __init__(self, parsed: Parsed, text: str) -> None:
        self.parsed = parsed
        self.lines = text.splitlines()
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.spread: set[str] = set()

    def unused(self) -> None:
        """Arrays that no command here uses: a file of arguments that another script reads."""
        for name, words in self.arrays.items():
            at = 0
            while name not in self.spread and at < len(words):
                at = self.flag(words, at, 1, "program") if words[at].startswith("-") else at + 1

    def where(self, word: str, start: int) -> tuple[int, str]:
        """The line of a word: from the command's start on, else anywhere (an array stands before its use)."""
        order = (*range(start - 1, len(self.lines)), *range(start - 1))
        at = next((i for i in order if word in self.lines[i]), start - 1)
        return at + 1, self.lines[at].strip()[:500] if at < len(self.lines) else ""

    def command(self, command: str, start: int) -> None:
        """Take one command apart."""
        if (array := _ARRAY.match(command)) is not None:
            words = [self.expanded(w) for w in split(array.group(3))]
            self.arrays[array.group(1)] = (self.arrays.get(array.group(1), []) if array.group(2) else []) + words[:_WORDS]
            return
        words = self.words(self.computed(command))
        scope, at = "", 0
        program: list[str] = []
        while at < len(words):
            word = words[at]
            match = _ASSIGNMENT.match(word)
            if match and not program:
                self.variables[match.group(1)] = match.group(2)[:10_000]
                self.parsed.add(Key(match.group(1), literal(match.group(2)), *self.where(match.group(1) + "=", start), scope="env"))
            elif word in ("export", "set", "--"):
                pass
            elif word.startswith("-") and word != "-m" and (scope or program):
                at = self.flag(words, at, start, scope or _scope_of(program))
                continue
            elif word == "-m" and at + 1 < len(words):
                scope = _LAUNCH_MODULES.get(words[at + 1], "")
                program.append(f"-m {words[at + 1]}")
                at += 2
                continue
            elif not program and word in _LAUNCHERS:
                scope = _LAUNCHERS[word]
                program.append(word)
            elif word == "run" and program == ["tune"]:
                scope = "torchrun"  # torchtune's launcher takes torchrun's flags before the recipe
                program.append(word)
            elif word == "launch" and program and program[-1].endswith("accelerate"):
                scope = "accelerate launch"
                program.append(word)
            elif (override := _OVERRIDE.match(word)) and program:
                self.parsed.add(Key(override.group(1), literal(override.group(2)), *self.where(word[:40], start), scope=_scope_of(program)))
            else:
                program.append(word)
                if _SCRIPT.search(word) or scope:
                    scope = ""
            at += 1
        if program and program[0] not in _NO_PROGRAM:
            self.parsed.programs.append((" ".join(program)[:500], *self.where(program[0], start)))

    def words(self, command: str) -> list[str]:
        """The words, with arrays and variables that hold several words spread out."""
        found: list[str] = []
        for word in split(command):
            reference = _REFERENCE.match(word)
            if reference and reference.group(1) in self.arrays:
                found += self.arrays[reference.group(1)]
                self.spread.add(reference.group(1))
            elif reference and "[" in word:
                continue  # an array of another file
            elif reference and "--" in (value := self.variables.get(reference.group(1), "")):
                found += [self.expanded(w) for w in split(value)]
            else:
                found.append(self.expanded(word))
            if len(found) > _WORDS:
                break
        return found[:_WORDS]

    def expanded(self, word: str) -> str:
        """A word with the variables that are known put in."""
        if "$" not in word:
            return word
        for _ in range(3):
            new = _VARIABLE.sub(lambda m: self.variables.get(m.group(1)) or (m.group(2) or m.group(0)), word)[:10_000]
            if new == word:
                break
            word = new
        return self.computed(word)

    def computed(self, command: str) -> str:
        """``$((a + b))`` worked out where all of it is known whole numbers; nothing else is ever evaluated."""
        return _SUM.sub(lambda m: arithmetic(m.group(1), self.variables) or m.group(0), command) if "$((" in command else command

    def flag(self, words: Sequence[str], at: int, start: int, scope: str) -> int:
        """One flag and its values. Returns the position behind them."""
        word = words[at]
        name, equals, value = word.partition("=")
        key = name.lstrip("-")
        if not key or not re.match(r"^[A-Za-z_][\w.\-/]*$", key):
            return at + 1
        line, text = self.where(word[:60], start)
        values: list[str] = [value] if equals else []
        at += 1
        while not equals and at < len(words) and not re.match(r"^--?[A-Za-z_]|^--$", words[at]):
            if scope in _LAUNCHER_SCOPES and ((_SCRIPT.search(words[at]) and key not in _TAKES_FILE) or values):
                break
            if (override := _OVERRIDE.match(words[at])) and (values or "." in override.group(1)):
                break
            values.append(words[at])
            at += 1
            if scope == "torchrun":
                break
        if not values and re.match(r"^no[-_]", key):
            self.parsed.add(Key(re.sub(r"^no[-_]", "", key), False, line, text, scope))
        found: Any = True if not values else literal(values[0]) if len(values) == 1 else [literal(v) for v in values]
        self.parsed.add(Key(key, found, line, text, scope))
        return at


def _scope_of(program: Sequence[str]) -> str:
    """The program whose arguments follow: ``trl vllm-serve``, ``train.py``, ``pretrain_gpt.py``."""
    words = [w for w in program if w not in _RUNNERS and w != "launch" and w != "accelerate" and w not in _LAUNCHERS]
    if not words:
        return "program"
    script = next((w for w in words if w.endswith(".py")), None)
    return script.rsplit("/", 1)[-1] if script else " ".join(words[:2])
