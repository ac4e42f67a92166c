"""What people write beside their settings: ``# 8 x A100 80GB, full fine-tune, ZeRO-3``. Weak facts: anything firmer wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from advisor import cards
from advisor.evidence import Fact
from advisor.frameworks.key import Key
from advisor.reading.configs.from_shell import parse
from advisor.reading.configs.shell_starters import STARTERS
from advisor.reading.configs.shell_words import literal
from advisor.reading.pattern import pattern
from advisor.reading.switched_off import is_code

_PAIR = pattern(r"(?<![\w.])([A-Za-z_]\w*(?:\.\w+)*)\s?=\s?(\"[^\"]*\"|'[^']*'|[\w.\-/]+)")
_NUMBERED = pattern(r"\b(max_seq_length|max_length|seq_len|sequence length|batch size|micro batch|batch|seq)\s*(?:of|:|is)?\s+(\d{1,7})\b", re.IGNORECASE)
_WITHOUT = pattern(r"^without --([A-Za-z_][\w.\-]*)$")
_NAMES = {"sequence length": "seq_len", "seq": "seq_len", "batch size": "batch_size", "batch": "batch_size", "micro batch": "micro_batch_size"}
_CARDS = pattern(r"\b(\d{1,4})\s*(?:x|×|\*)\s*((?:NVIDIA |AMD )?(?:Tesla |GeForce )?[A-Z][\w\-]*(?: [\w\-]+){0,4})", re.IGNORECASE)
_CARD = pattern(
    r"\b((?:NVIDIA |Tesla |GeForce |Quadro ){0,3}(?:RTX(?: PRO)? ?(?:A?\d{4})(?: ?Ti| SUPER| Ada)?(?: Ada)?(?: Generation)?|[AHVLTB]\d{1,3}"
    r"(?:-(?:SXM\d?|PCIE|PCIe))?|GB?200|GH200|H20|A800|H800|L40S|MI\d{3}X?|TITAN \w+)(?:[- ]?\d{2,3} ?G(?:i?B)?)?)\b"
)
_GPUS = pattern(r"\b(\d{1,4})\s*(?:gpus|cards)\b", re.IGNORECASE)
_HUB = pattern(r"(?<![\w/.\-])([A-Za-z0-9][\w\-]{1,60}/[A-Za-z][\w.\-]*\d[\w.\-]*|facebook/[\w\-]+|google/[\w\-]+)(?![\w/])")
_VERSION = pattern(
    r"\b(torch|transformers|trl|peft|accelerate|deepspeed|vllm|bitsandbytes|axolotl|pytorch|flash-attn)\s*(?:==|>=|v|version)?\s*(\d+\.\d+(?:\.\d+)?)",
    re.IGNORECASE,
)

_ADDRESS = pattern(r"https?://\S+")
_SHORT = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

_PHRASES: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], dict[str, Any]]]] = (
    (pattern(r"\bzero[- ]?(?:stage[- ]?)?([123])\b", re.IGNORECASE), lambda m: {"parallel.strategy": f"zero{m.group(1)}"}),
    (pattern(r"\bfsdp ?2\b", re.IGNORECASE), lambda _: {"parallel.strategy": "fsdp2"}),
    (pattern(r"\bfsdp\b(?! ?2)", re.IGNORECASE), lambda _: {"parallel.strategy": "fsdp1"}),
    (pattern(r"--multi_gpu\b|\bddp\b", re.IGNORECASE), lambda _: {"parallel.strategy": "ddp"}),
    (pattern(r"\bfull[- ](?:parameter |model )?(?:fine[- ]?tun\w*|ft)\b", re.IGNORECASE), lambda _: {"method.kind": "full"}),
    (pattern(r"\bqlora\b", re.IGNORECASE), lambda _: {"method.kind": "lora", "method.base": "nf4"}),
    (pattern(r"(?<!q)\blora\b(?! ?[a-z_]*=)", re.IGNORECASE), lambda _: {"method.kind": "lora"}),
    (
        pattern(r"\b(?<!no )(?<!without )(?:gradient|activation) checkpointing(?! (?:is )?off)\b", re.IGNORECASE),
        lambda _: {"activations.checkpointing": "full"},
    ),
    (pattern(r"\bflash[- ]?attention(?:[- ]?2)?\b|\bflash[- ]attn\b", re.IGNORECASE), lambda _: {"activations.attention": "flash-2"}),
    (
        pattern(r"\b(?:loaded |weights |model |held )?in (bf16|fp16|fp32|bfloat16|float16|float32)\b", re.IGNORECASE),
        lambda m: {"precision.weights": _SHORT[m.group(1).lower()]},
    ),
    (pattern(r"\b(?:everything|all samples|sequences?) packed\b", re.IGNORECASE), lambda _: {"batch.packed": True}),
)


def keys(comments: Sequence[tuple[int, str]]) -> Iterator[Key]:
    """``name=value`` pairs and ``max_seq_length 512`` within comments, as weak keys."""
    for line, text in comments:
        if text.startswith("SBATCH "):
            continue  # Slurm's options, which the script's reader has read
        if is_code(text):
            continue
        if STARTERS.match(text):  # a command in a remark: how the script is started
            for key in parse(text).keys:
                yield Key(key.path, key.value, line, text, key.scope, weak=True)
            continue
        for match in _PAIR.finditer(text):
            yield Key(match.group(1), literal(match.group(2).strip("\"'")), line, text, "comment", weak=True)
        for match in re.finditer(r"--([A-Za-z_][\w\-]*)[ =]([\w.\-/]+)", text):
            yield Key(match.group(1), literal(match.group(2)), line, text, "comment", weak=True)
        for match in _WITHOUT.finditer(text):
            yield Key(match.group(1), False, line, text, "comment", weak=True)
        for match in _NUMBERED.finditer(text):
            name = match.group(1).lower()
            yield Key(_NAMES.get(name, name), int(match.group(2)), line, text, "comment", weak=True)


def programs(comments: Sequence[tuple[int, str]]) -> list[tuple[str, int, str]]:
    """The commands that remarks name: ``# tune run --nproc_per_node 4 full_finetune_distributed``."""
    return [(program, line, text) for line, text in comments if STARTERS.match(text) for program, _, _ in parse(text).programs]


def facts(comments: Sequence[tuple[int, str]], name: str, *, own: bool) -> dict[str, Fact]:
    """One fact a field, the first that says it.

    ``own``: the remarks are the user's, beside a snippet or command. In a config file they are as often the project's documentation
    ("with FSDP set ..."), so only cards, models and versions are taken from them.
    """
    found: dict[str, Fact] = {}
    for line, text in comments:
        for field, value in _said(text, own):
            found.setdefault(field, Fact(field, value, "read", where=f"{name}:{line}", text=text))
    return found


def _said(text: str, own: bool) -> Iterator[tuple[str, Any]]:
    text = _ADDRESS.sub(" ", text)  # the anchor #L4 of a link is no card
    for phrase, fields in _PHRASES if own else ():
        if match := phrase.search(text):
            yield from fields(match).items()
    if match := _CARDS.search(text):
        words = match.group(2).split()
        for end in range(len(words), 0, -1):
            if card := cards.find(" ".join(words[:end])):
                yield "hardware.gpus_per_node", int(match.group(1))
                yield "hardware.gpu", card.id
                break
    if match := _CARD.search(text):
        card = cards.find(match.group(1)) or cards.find(re.sub(r"[- ]?\d{2,3} ?G(?:i?B)?$", "", match.group(1)))
        if card:
            yield "hardware.gpu", card.id
    if match := _GPUS.search(text):
        yield "hardware.gpus_per_node", int(match.group(1))
    if match := _HUB.search(text):
        yield "model.name", match.group(1)
    for match in _VERSION.finditer(text):
        package = match.group(1).lower()
        yield f"framework.versions.{'torch' if package == 'pytorch' else package}", match.group(2)
