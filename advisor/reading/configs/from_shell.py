"""Shell commands: launchers, programs, their flags and overrides, and environment variables. Words are taken apart, nothing is run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence
from typing import Any

from advisor.frameworks.key import Key, Unread
from advisor.reading.configs.parsed import Parsed

_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_OVERRIDE = re.compile(r"^[+~]{0,2}([A-Za-z_][\w./\-@]*)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}?")
_LAUNCHERS = {"torchrun": "torchrun", "deepspeed": "deepspeed", "srun": "srun", "mpirun": "srun"}
_LAUNCH_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "deepspeed.launcher.runner": "deepspeed"}
_RUNNERS = frozenset(
    {"python", "python3", "uv", "run", "poetry", "nohup", "sudo", "env", "time", "exec", "bash", "sh", "conda", "stdbuf", "numactl", "ipython"}
)
_SCRIPT = re.compile(r"\.(py|sh|ya?ml|toml)$")
STARTERS = re.compile(
    r"^\s*(?:[$>#]\s+)?(?:export\s+)?(?:[A-Z_][A-Z0-9_]*=\S*\s+)*(torchrun|accelerate\s+launch|deepspeed|python3?|tune\s+run|litgpt|swift|megatron|trl|axolotl|"
    r"llamafactory-cli|srun|ray\s+job|composer|xtuner|fairseq-train|NPROC_PER_NODE=|uv\s+run|bash|colossalai|export\s+\w+=)\b",
    re.MULTILINE,
)


def parse(text: str) -> Parsed:
    """The keys of every command of a script."""
    parsed = Parsed("shell")
    variables: dict[str, str] = {}
    for number, command in _commands(text):
        _command(command, number, parsed, variables)
    parsed.comments = [(i, m.group(1)) for i, line in enumerate(text.splitlines(), 1) if (m := re.search(r"(?:^|\s)#(?!!)\s*(\S.*)$", line))]
    return parsed


def _commands(text: str) -> list[tuple[int, str]]:
    """Commands with the line they start on; continuation lines joined (a comment between them does not end them)."""
    found: list[tuple[int, str]] = []
    joined, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        if joined and not line.strip():
            found.append((start, joined))
            joined = ""
            continue
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        line = re.sub(r"^\s*[$>]\s+", "", line) if not joined else line
        start = start if joined else number
        bare = re.sub(r"\s#\s.*$", "", line)
        if bare.endswith("\\"):
            joined += bare[:-1] + "\n"
            continue
        found.append((start, joined + bare))
        joined = ""
    if joined:
        found.append((start, joined))
    return [(n, part) for n, c in found for part in re.split(r"&&|;(?=\s|$)|\|(?=\s)", c) if part.strip()]


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quote: words as they stand
        return command.replace("'", "").replace('"', "").split()


def _command(command: str, start: int, parsed: Parsed, variables: dict[str, str]) -> None:
    words = [_expand(w, variables) for w in _split(command)]
    lines = command.split("\n")

    def where(word: str) -> tuple[int, str]:
        for offset, line in enumerate(lines):
            if word in line:
                return start + offset, line.strip()[:500]
        return start, lines[0].strip()[:500]

    scope, at = "", 0
    program: list[str] = []
    while at < len(words):
        word = words[at]
        match = _ASSIGNMENT.match(word)
        if match and not program:
            variables[match.group(1)] = match.group(2)
            parsed.add(Key(match.group(1), literal(match.group(2)), *where(match.group(1) + "="), scope="env"))
        elif word == "export" or word == "set":
            pass
        elif word.startswith("-") and word != "-m" and (scope or program):
            at = _flag(words, at, parsed, where, scope or _scope_of(program))
            continue
        elif word == "-m" and at + 1 < len(words):
            module = words[at + 1]
            scope = _LAUNCH_MODULES.get(module, "")
            program.append(f"-m {module}")
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
        elif (match and (override := _OVERRIDE.match(word))) or ((override := _OVERRIDE.match(word)) and program):
            parsed.add(Key(override.group(1), literal(override.group(2)), *where(word[:40]), scope=_scope_of(program)))
        else:
            program.append(word)
            if _SCRIPT.search(word) or scope:
                scope = ""
        at += 1
    if program and (
        program[0]
        not in ("echo", "cd", "mkdir", "ls", "cat", "pip", "git", "if", "fi", "then", "else", "for", "done", "do", "#!/bin/bash", "ulimit", "module", "source")
    ):
        parsed.programs.append((" ".join(program), start, lines[0].strip()[:500]))


def _scope_of(program: Sequence[str]) -> str:
    """The program whose arguments follow: ``trl vllm-serve``, ``train.py``, ``pretrain_gpt.py``."""
    words = [w for w in program if w not in _RUNNERS and w != "launch" and w != "accelerate" and w not in _LAUNCHERS]
    if not words:
        return "program"
    script = next((w for w in words if w.endswith(".py")), None)
    return script.rsplit("/", 1)[-1] if script else " ".join(words[:2])


def _flag(words: Sequence[str], at: int, parsed: Parsed, where: Any, scope: str) -> int:
    """One flag and its values. Returns the position behind them."""
    word = words[at]
    name, equals, value = word.partition("=")
    key = name.lstrip("-")
    if not key or not re.match(r"^[A-Za-z_][\w.\-/]*$", key):
        return at + 1
    line, text = where(word[:60])
    values: list[str] = [value] if equals else []
    at += 1
    launcher = scope in ("torchrun", "deepspeed", "accelerate launch", "srun")
    while not equals and at < len(words) and not re.match(r"^--?[A-Za-z_]", words[at]):
        if launcher and ((_SCRIPT.search(words[at]) and key not in ("config_file", "hostfile", "config-file")) or values):
            break
        if _ASSIGNMENT.match(words[at]) and "." in words[at].split("=")[0]:
            break
        values.append(words[at])
        at += 1
        if scope == "torchrun":
            break
    if not values:
        if re.match(r"^no[-_]", key):
            parsed.add(Key(re.sub(r"^no[-_]", "", key), False, line, text, scope))
        found: Any = True
    else:
        found = literal(values[0]) if len(values) == 1 else [literal(v) for v in values]
    parsed.add(Key(key, found, line, text, scope))
    return at


def _expand(word: str, variables: dict[str, str]) -> str:
    if "$" not in word:
        return word
    return _VARIABLE.sub(lambda m: variables.get(m.group(1)) or (m.group(2) or m.group(0)), word)[:10_000]


def literal(word: str) -> Any:
    """A word of a command line as the value it stands for."""
    word = word.strip()
    if word.startswith("$") or "$(" in word or "${" in word:
        return Unread(word)
    lower = word.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("null", "none", ""):
        return None
    if re.fullmatch(r"[-+]?[\d_]*\.?\d+([eE][-+]?\d+)?", word) or (word[:1] in "[({'\"" and len(word) < 10_000):
        try:
            value = ast.literal_eval(word)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            if word[:1] == "[" and word[-1:] == "]":
                return [literal(part) for part in word[1:-1].split(",")]
            return word
        return value if isinstance(value, int | float | str | list) else word
    return word
