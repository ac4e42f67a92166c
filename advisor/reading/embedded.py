"""Configs that a log prints: ``Namespace(...)``, ``TrainingArguments(...)``, ``Model config LlamaConfig {...}``, DeepSpeed's ``json = {...}``.

They say how the run really was set up, defaults included, so they win over files. Nothing is executed: the text between the brackets is
handed to the config readers, and their places are put back to the log's lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from advisor.evidence import Fact
from advisor.reading.dumped import dumps
from advisor.reading.handoff import ConfigReading, read_config
from advisor.reading.pattern import pattern as lazily
from advisor.reading.prefixes import split, strip_control

MAX_BLOCKS, MAX_BLOCK = 12, 40_000
_CALL = lazily(r"\b((?:[A-Z]\w{0,40})?(?:Namespace|Arguments|ScriptArgs|SFTConfig|DPOConfig|GRPOConfig|LoraConfig|BitsAndBytesConfig))\(")
_JSON = lazily(r"(?:Model config \w{1,60}|\bjson\s*=|DeepSpeed config:?|training_args:?|config:) (\{)")
_PAIR = lazily(r"^\s*([A-Za-z_]\w{0,60})\s*=\s*(.+)$", re.DOTALL)
_VALUE = lazily(r"^(?:None|True|False|-?\d[\d_.e+-]{0,30}|'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|\[[^\[\]\n]{0,600}\]|\{[^{}\n]{0,600}\})$")
_ENUM = lazily(r"^<\w+\.\w+: ('[^']{0,80}')>$")


def printed_configs(name: str, text: str) -> Iterator[ConfigReading]:
    """Each block of a log as the config readers see it, with facts placed at the log's lines."""
    blocks = 0
    for match in _CALL.finditer(text):
        inside = _balanced(text, match.end() - 1, "()")
        if inside is None:
            continue
        pairs = [pair for part in _top_level(_plain(inside)) if (pair := _pair(part)) is not None]
        if len(pairs) < 2:
            continue
        called = match[1] if match[1] not in ("Namespace", "Arguments") else None
        script = f"{called}(" + ", ".join(f"{k}={v}" for k, v in pairs) + ")" if called else "\n".join(f"{k} = {v}" for k, v in pairs)
        yield from _read(name, "printed-arguments.py", script, text.count("\n", 0, match.start()) + 1, None)
        blocks += 1
        if blocks >= MAX_BLOCKS:
            return
    for match in _JSON.finditer(text):
        inside = _balanced(text, match.start(1), "{}")
        if inside is None:
            continue
        file = "config.json" if "Model config" in match[0] else "ds_config.json"
        yield from _read(name, file, "{" + _plain(inside) + "}", text.count("\n", 0, match.start()) + 1, True)
        blocks += 1
        if blocks >= MAX_BLOCKS:
            return
    for dump in dumps(text):
        yield from _read(name, dump.as_file, dump.script, dump.line, None)
        blocks += 1
        if blocks >= MAX_BLOCKS:
            return


def _read(name: str, as_file: str, script: str, line: int, spread: bool | None) -> Iterator[ConfigReading]:
    found = read_config(as_file, script)
    if found is not None and not found.problem:
        yield _Placed(found, name, line, bool(spread))


class _Placed:
    """A config reading whose places are the log's."""

    def __init__(self, found: ConfigReading, name: str, line: int, spread: bool) -> None:
        self.kind, self.problem = f"printed {found.kind}", found.problem
        self.not_understood, self.conflicts = found.not_understood[:0], found.conflicts

        def place(where: str | None) -> str:
            inner = int(where.rpartition(":")[2]) if spread and where and where.rpartition(":")[2].isdigit() else 1
            return f"{name}:{line + inner - 1}"

        self.facts: tuple[Fact, ...] = tuple(replace(fact, where=place(fact.where)) for fact in found.facts)
        self.seen_keys = tuple((place(where), key, value) for where, key, value in found.seen_keys)


def _balanced(text: str, start: int, brackets: str) -> str | None:
    """What stands between a bracket and its partner; ``None`` where it is not closed within the bound."""
    depth = 0
    opening, closing = brackets[0], brackets[1]
    for index in range(start, min(len(text), start + MAX_BLOCK)):
        char = text[index]
        if char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return text[start + 1 : index]
    return None


def _plain(inside: str) -> str:
    """The block without the prefixes that a logger puts before each line."""
    if "\n" not in inside:
        return inside
    return "\n".join(split(strip_control(line)).text for line in inside.split("\n"))


def _top_level(inside: str) -> Iterator[str]:
    depth, start = 0, 0
    for index, char in enumerate(inside):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            yield inside[start:index]
            start = index + 1
    yield inside[start:]


def _pair(part: str) -> tuple[str, str] | None:
    match = _PAIR.match(part.strip())
    if match is None:
        return None
    value = match[2].strip()
    if (enum := _ENUM.match(value)) is not None:
        value = enum[1]
    return (match[1], value) if _VALUE.match(value) else None
