"""The words of one command: its launcher, its program, and the flags and overrides that are given to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from advisor.frameworks.key import Key
from advisor.reading.configs import from_json, shell_documents
from advisor.reading.configs.parsed import Parsed
from advisor.reading.configs.shell_words import literal
from advisor.reading.pattern import pattern

_OVERRIDE = pattern(r"^[+~]{0,2}([A-Za-z_][\w./\-@]*)=(.*)$", re.DOTALL)
_LAUNCHERS = {"torchrun": "torchrun", "deepspeed": "deepspeed"}
_LAUNCH_MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "torch.distributed.launcher.run": "torchrun",
    "deepspeed.launcher.runner": "deepspeed", "accelerate.commands.launch": "accelerate launch",
}  # fmt: skip
_RUNNERS = frozenset(
    {"python", "python3", "uv", "run", "poetry", "nohup", "sudo", "env", "time", "exec", "bash", "sh", "conda", "stdbuf", "numactl", "ipython", "eval"}
)
_LAUNCHER_SCOPES = frozenset({"torchrun", "deepspeed", "accelerate launch", "srun"})
_TAKES_FILE = frozenset({"config_file", "config-file", "hostfile"})
_SCRIPT = pattern(r"\.(py|sh|ya?ml|toml)$")
_NESTED = pattern(r"\s(?:.*\s)?--?\w|\b(?:torchrun|python3?|deepspeed|accelerate|swift|megatron)\s", re.DOTALL)
NO_PROGRAM = frozenset(
    {"echo", "cd", "mkdir", "ls", "cat", "pip", "pip3", "git", "ulimit", "module", "source", "sleep", "pkill", "grep", "rm", "cp", "mv", "ln", "set", "test"}
    | {"[", "[[", "wait", "exit", "return", "read", "printf", ".", ":", "tee", "sed", "awk", "apt", "apt-get", "conda", "wget", "curl", "huggingface-cli", "hf"}
    | {"tar", "unzip", "nvidia-smi", "find", "tail", "head", "kill", "which", "command", "trap", "hash", "scontrol", "pushd", "popd", "chmod", "touch", "unset"}
    | {"shift", "break", "continue", "shopt", "ps", "xargs", "date", "hostname", "dirname", "basename", "seq", "sort", "wc", "rsync", "ssh", "scp", "getopts"}
)

_POSITIONAL = {"litgpt": "checkpoint_dir"}  # litgpt 0.4 and later __main__.py (jsonargparse): the first word behind the subcommand


class Arguments:
    """Takes commands apart into keys of ``parsed``.

    ``where`` finds a word's line and text; ``nested`` is for a command within one word, ``program`` for one that follows ``--``.
    """

    def __init__(
        self, parsed: Parsed, where: Callable[[str, int], tuple[int, str]], nested: Callable[[str, int], None], program: Callable[[list[str], int], None]
    ) -> None:
        self.parsed, self.where, self.nested, self.program = parsed, where, nested, program

    def take(self, words: list[str], start: int) -> None:
        """One command without what only starts it."""
        scope, at = "", 0
        program: list[str] = []
        while at < len(words):
            word = words[at]
            if word == "--" and program:  # what follows is a command of its own: ray job submit -- python train.py
                self._named(program, start)
                self.program(words[at + 1 :], start)
                return
            if word.startswith("-") and word != "-m" and not (word == "--module" and scope) and (scope or program):
                if re.search(r"\s", word.partition("=")[0]) or (word in ("-c", "-lc") and at + 1 < len(words)):
                    self.nested(words[at + 1] if word.startswith(("-c", "-lc")) and at + 1 < len(words) else word, start)
                    at += 2
                    continue
                at = self.flag(words, at, start, scope or _scope_of(program))
                continue
            if (word == "-m" or (word == "--module" and scope)) and at + 1 < len(words):
                scope = _LAUNCH_MODULES.get(words[at + 1], "")
                program.append(f"-m {words[at + 1]}")
                at += 2
                continue
            if word in _LAUNCHERS and set(program) <= _RUNNERS:
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
            elif re.search(r"\s", word) and _NESTED.search(word):
                self.nested(word, start)
            else:
                program.append(word)
                if _SCRIPT.search(word) or scope:
                    scope = ""
            at += 1
        self._named(program, start)

    def _named(self, program: list[str], start: int) -> None:
        words = [word for word in program if word not in ("sudo", "nohup", "time", "exec", "eval", "env")]
        if words and words[0] not in NO_PROGRAM:
            self.parsed.programs.append((" ".join(words)[:500], *self.where(words[0], start)))
            if (key := _POSITIONAL.get(words[0])) is not None and len(words) >= 3:
                self.parsed.add(Key(key, words[2], *self.where(words[2][:40], start), scope=_scope_of(program)))

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
        if values and key.replace("-", "_") in ("runtime_env_json", "runtime_env") and values[0].startswith("{"):
            shell_documents.environment(values[0], line, text, self.parsed)
        found: Any = True if not values else literal(values[0]) if len(values) == 1 else [literal(v) for v in values]
        inner = from_json.load(found) if isinstance(found, str) and found[:1] == "{" and len(found) < 20_000 else None
        for path, item in from_json.flatten(inner, key) if isinstance(inner, dict) and inner else ((key, found),):  # --fsdp_config '{"...": ...}'
            self.parsed.add(Key(path, item, line, text, scope))
        return at


def _scope_of(program: Sequence[str]) -> str:
    """The program whose arguments follow: ``trl vllm-serve``, ``train.py``, ``pretrain_gpt.py``."""
    words = [w for w in program if w not in _RUNNERS and w != "launch" and w != "accelerate" and w not in _LAUNCHERS]
    if not words:
        return "program"
    script = next((w for w in words if w.endswith(".py")), None)
    return script.rsplit("/", 1)[-1] if script else " ".join(words[:2])
