"""Settings that a run prints without a class's name: Megatron's table of arguments, and mappings as Python or JSON writes them.

Sources: Megatron-LM megatron/training/arguments.py ``_print_args`` (a line an argument, dots between name and value); verl trainer/main_ppo.py
``pprint(OmegaConf.to_container(config))``; litgpt finetune/lora.py ``print(hparams)``; scripts that print ``vars(args)`` or log their config. What a
Trainer prints at each logging step is a mapping too, of measurements: it has a loss or an epoch.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from advisor.reading.pattern import pattern
from advisor.reading.prefixes import split, strip_control

LONGEST = 40_000  # characters of one mapping or table
MOST_TABLES = 4  # a run prints one, and each restart another
MOST_TRIED = 40  # mappings looked at in one text
LEAST_KEYS = 3
_TABLE = pattern(r"-{5} arguments -{5}")  # no more: a long rule of dashes would be begun at each of them
_END = "end of arguments"
_ARGUMENT = pattern(r"^\s*([a-z]\w{1,60}) \.{2,} (.{0,300}?)\s*$")
_OPENS = pattern(r"\{[ \t\n]{0,20}['\"]")
_NAMED = pattern(r"\b(?:[Cc]onfig(?:uration)?|cfg|[Aa]rg(?:s|uments)?|h(?:yper)?param(?:eter)?s|[Ss]ettings|[Pp]arameters)\W{1,12}$")  # what stands before it
_PREFIX = pattern(r"^(?:\[[^\]\n]{1,40}\]:?|\([^()\n]{1,60}\)|\S{1,20})?[ \t]{0,4}$")  # or it begins its line, behind who prints it
_WORD = pattern(r"(?<![\w.])[A-Za-z][a-z]+(?![\w.(])")  # of a sentence: names of files, of loggers and calls are none
_CLOSES = pattern(r"[)\]}'\",;]{0,4}[ \t]*(?:#.*)?(?:$|\n|\\n)")
MOST_WORDS = 4  # "Training arguments", "Loaded the final config": a label; more of them are a sentence
BEFORE = 160  # characters of a line before its mapping
_MEASURED = frozenset({"loss", "train_loss", "eval_loss", "epoch", "step", "grad_norm", "train_runtime", "eval_runtime", "reward"})


class Dump(Struct, frozen=True):
    """Settings as a config reader takes them: the ``script`` of a file called ``as_file``, printed from ``line`` on."""

    line: int
    as_file: str
    script: str


def dumps(text: str) -> Iterator[Dump]:
    """Each table and mapping of a log."""
    yield from _tables(text)
    if "{'" in text or '{"' in text or "{\n" in text:
        yield from _mappings(text)


def _tables(text: str) -> Iterator[Dump]:
    for match in islice(_TABLE.finditer(text), MOST_TABLES):
        end = text.find(_END, match.end(), match.end() + LONGEST)
        inside = text[match.end() : end if end >= 0 else match.end() + LONGEST]
        words = []
        for raw in inside.split("\n"):
            found = _ARGUMENT.match(split(strip_control(raw)).text)
            if found is not None and found[2] not in ("None", "False", ""):
                words.append(f"--{found[1].replace('_', '-')}" + ("" if found[2] == "True" else f" '{found[2].replace(chr(39), '')}'"))
        if len(words) >= LEAST_KEYS:
            yield Dump(text.count("\n", 0, match.start()) + 1, "printed-arguments.sh", "python pretrain_gpt.py " + " ".join(words))


def _mappings(text: str) -> Iterator[Dump]:
    until = tried = 0
    for match in _OPENS.finditer(text):
        start = match.start()
        begins = text.rfind("\n", max(0, start - BEFORE), start) + 1
        if start < until or start - begins >= BEFORE:  # too far into its line, or into the text's first
            continue
        before = text[begins:start]
        if "{" in before or not (_PREFIX.match(before) or (_NAMED.search(before) and len(_WORD.findall(split(before).text)) <= MOST_WORDS)):
            continue
        tried += 1
        if tried > MOST_TRIED:
            return
        inside = _to_partner(text, start)
        if inside is None:
            continue
        until = start + len(inside)
        if not _CLOSES.match(text, until) and not _PREFIX.match(before):
            continue  # a sentence goes on behind it: an example, not what a run prints
        content = _content(inside)
        if content is None or len(content) < LEAST_KEYS - (any(isinstance(value, dict) for value in content.values()) * 2) or _MEASURED & content.keys():
            continue
        script = _as_json(content)
        if script is not None:
            yield Dump(text.count("\n", 0, match.start()) + 1, "printed.json", script)


def _to_partner(text: str, start: int) -> str | None:
    """From a bracket to its partner, quotes respected; ``None`` where it is not closed within the bound."""
    depth, quote = 0, ""
    place, end = start, min(len(text), start + LONGEST)
    while place < end:
        char = text[place]
        if quote:
            if char == "\\":
                place += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
            if depth == 0:
                return text[start : place + 1]
        place += 1
    return None


def _content(inside: str) -> dict[str, Any] | None:
    """The mapping that a literal writes, of Python or of JSON; nothing of it is run."""
    lines = inside.split("\n")
    plain = "\n".join((lines[0], *(split(strip_control(line)).text for line in lines[1:])))
    for reads in (json.loads, ast.literal_eval):
        try:
            found = reads(plain)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(found, dict) and all(isinstance(key, str) for key in found):
            return found
    return None


def _as_json(content: dict[str, Any]) -> str | None:
    """The mapping as JSON: without keys that are no words or numbers within it, and none at all with a number of thousands of digits."""
    try:
        return json.dumps(content, default=str, skipkeys=True)
    except (ValueError, RecursionError):
        return None
