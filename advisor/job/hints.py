"""What was meant by a value that a field does not take: the same thing under another framework's word, or a choice that is written nearly so."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

# by field: words that frameworks and papers use, and how the job file says the same
_MEANT = {
    "method.kind": {
        "qlora": "QLoRA is kind: lora with base: nf4",
        "qdora": "QDoRA is kind: dora with base: nf4",
        "sft": "that is an objective: write objective: sft, and here how many weights are trained",
        "dpo": "that is an objective: write objective: dpo, and here how many weights are trained",
        "none": "a run that trains all weights is kind: full",
    },
    "parallel.strategy": {
        "fsdp": "fully_shard (torch's FSDP2) is fsdp2, FullyShardedDataParallel is fsdp1",
        "deepspeed": "DeepSpeed's stage decides: zero1, zero2 or zero3",
        "zero": "the stage decides: zero1, zero2 or zero3",
    },
}
# by value: torch's and transformers' own names
_SAME = {
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32",
    "flash_attention_2": "flash-2", "flash_attention_3": "flash-3",
}  # fmt: skip
_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_WORD = re.compile(r"\d+-?bits?|[a-z]+|\d+")


def hint(path: str, value: Any, choices: Sequence[Any]) -> str:
    """`` did you mean 'fsdp2'?`` for a value that is none of the choices; empty where nothing is near.

    Args:
        path: the job field, dotted.
        value: what was written.
        choices: what the field takes; nothing where it takes more than a closed list.
    """
    known = [choice for choice in choices if isinstance(choice, str)]
    if not known or not isinstance(value, str | bool):
        return ""
    text = str(value).strip().lower()[:80]
    if (said := _MEANT.get(path, {}).get(text)) is not None:
        return f"; {said}"
    if text in _YES | _NO or text in _SAME:
        plain = _SAME.get(text) or ("full" if text in _YES else "none")
        return f"; did you mean {plain!r}?" if plain in known else ""
    near = [choice for choice in known if text and choice.startswith(text)] or _near(text, known)
    return f"; did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""


def _near(text: str, known: Sequence[str]) -> list[str]:
    """By letters; words may stand in another order (``8bit adam``)."""
    by_words = {_ordered(choice): choice for choice in reversed(known)}
    found = difflib.get_close_matches(_ordered(text), list(by_words), n=1, cutoff=0.7)
    return [by_words[found[0]]] if found else difflib.get_close_matches(text, known, n=1, cutoff=0.6)


def _ordered(text: str) -> str:
    return " ".join(sorted(word.replace("-", "") for word in _WORD.findall(text.lower())))
