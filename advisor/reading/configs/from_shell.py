"""Shell scripts and commands: launchers, programs, their flags and overrides, and environment variables. Words are taken apart, nothing is run."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any

from advisor.frameworks.key import Key
from advisor.reading.configs import from_json, shell_documents, slurm
from advisor.reading.configs.parsed import Parsed
from advisor.reading.configs.shell_expand import Scope
from advisor.reading.configs.shell_flow import Flow
from advisor.reading.configs.shell_lexer import Command, array_words, commands
from advisor.reading.configs.shell_prefixes import prefix
from advisor.reading.configs.shell_words import literal
from advisor.reading.pattern import pattern

_ASSIGNMENT = pattern(r"^([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)$", re.DOTALL)
_OVERRIDE = pattern(r"^[+~]{0,2}([A-Za-z_][\w./\-@]*)=(.*)$", re.DOTALL)
_LAUNCHERS = {"torchrun": "torchrun", "deepspeed": "deepspeed"}
_LAUNCH_MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "torch.distributed.launcher.run": "torchrun",
    "deepspeed.launcher.runner": "deepspeed", "accelerate.commands.launch": "accelerate launch",
}  # fmt: skip
_RUNNERS = frozenset(
    {"python", "python3", "uv", "run", "poetry", "nohup", "sudo", "env", "time", "exec", "bash", "sh", "conda", "stdbuf", "numactl", "ipython", "eval"}
)
_SHELLS = frozenset({"sbatch", "bash", "sh", "ssh"})
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_WORDS = 12_000
_ITEMS = 4_000  # words of one array
_LAUNCHER_SCOPES = frozenset({"torchrun", "deepspeed", "accelerate launch", "srun"})
_TAKES_FILE = frozenset({"config_file", "config-file", "hostfile"})
_NO_PROGRAM = frozenset(
    {"echo", "cd", "mkdir", "ls", "cat", "pip", "pip3", "git", "ulimit", "module", "source", "sleep", "pkill", "grep", "rm", "cp", "mv", "ln", "set", "test"}
    | {"[", "[[", "wait", "exit", "return", "read", "printf", ".", ":", "tee", "sed", "awk", "apt", "apt-get", "conda", "wget", "curl", "huggingface-cli", "hf"}
    | {"tar", "unzip", "nvidia-smi", "find", "tail", "head", "kill", "which", "command", "trap", "hash", "scontrol", "pushd", "popd", "chmod", "touch", "unset"}
    | {"shift", "break", "continue", "shopt", "ps", "xargs", "date", "hostname", "dirname", "basename", "seq", "sort", "wc", "rsync", "ssh", "scp", "getopts"}
)
_SCRIPT = pattern(r"\.(py|sh|ya?ml|toml)$")
_NESTED = pattern(r"\s(?:.*\s)?--?\w|\b(?:torchrun|python3?|deepspeed|accelerate|swift|megatron)\s", re.DOTALL)
# people name what they paste
_LABEL = r"(?:(?:[Ll]aunch(?:ed)?|[Cc]ommand|[Cc]md|CMD|[Rr]un|[Ss]tarted|启动命令|命令)(?: (?:command|with|by|as))?[ \t]?[:：][ \t]*)"
_LABELS = pattern(rf"^([ \t]*){_LABEL}", re.MULTILINE)
STARTERS = pattern(
    r"^[ \t]*(?:[$>#][ \t]+)?"
    + _LABEL
    + r"?(?:export\s+)?(?:[A-Z_][A-Z0-9_]*=\S*\s+)*(torchrun|accelerate\s+launch|deepspeed|python3?|tune\s+run|litgpt|swift|megatron|trl|axolotl|"
    r"llamafactory-cli|srun|ray\s+job|composer|xtuner|fairseq-train|NPROC_PER_NODE=|uv\s+run|bash|colossalai|export\s+\w+=)\b",
    re.MULTILINE,
)


def parse(text: str) -> Parsed:
    """The keys of every command that a script runs. Variables and arrays stand for the words that were assigned to them in the same script."""
    parsed = Parsed("shell")
    text = _LABELS.sub(r"\1", text)
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
                at = self.flag(words, at, 1, "program") if words[at].startswith("-") else at + 1

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
        if words and (words[0] not in _NO_PROGRAM or words[1:2] == ["run"]) and command.words[0] not in _DECLARES:
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
                self.program(words[before.at :], start) if not before.own else self._arguments(words[before.at :], start)
            return
        self._arguments(words, start)

    def _arguments(self, words: list[str], start: int) -> None:
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
                    self._nested(words[at + 1] if word.startswith(("-c", "-lc")) else word, start)
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
                self._nested(word, start)
            else:
                program.append(word)
                if _SCRIPT.search(word) or scope:
                    scope = ""
            at += 1
        self._named(program, start)

    def _named(self, program: list[str], start: int) -> None:
        words = [word for word in program if word not in ("sudo", "nohup", "time", "exec", "eval", "env")]
        if words and words[0] not in _NO_PROGRAM:
            self.parsed.programs.append((" ".join(words)[:500], *self.where(words[0], start)))

    def _nested(self, text: str, start: int) -> None:
        """A command within one word: ``bash -c "torchrun ..."``."""
        if self.depth < 3:
            self.depth += 1
            for inner in commands(text):
                inner.line += start - 1
                self.command(inner, True)
            self.depth -= 1

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
