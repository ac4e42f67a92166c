"""Named codecs: how one key's value and one field's value turn into each other.

``read`` takes what stands in a text (a literal, or a word of a command line) and returns the field's value; ``SILENT`` says that the
key leaves the field to its default ("auto", none); ``ValueError`` that the value is not understood. ``write`` is the way back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from advisor.frameworks.builders import of_builder


class _Silent:
    def __repr__(self) -> str:
        return "SILENT"


SILENT: Final = _Silent()
_TRUE = frozenset({"true", "yes", "on", "y", "1"})
_FALSE = frozenset({"false", "no", "off", "n", "0"})
_DTYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16", "fp32": "fp32", "float32": "fp32", "float": "fp32",
    "bf16-true": "bf16", "16-true": "fp16", "32-true": "fp32", "32": "fp32",
}  # fmt: skip
_LONG = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_ATTENTION_NAMES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_FUSED = {  # Megatron-Bridge's and NeMo's names of the same projections
    "linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_q": ("q_proj",), "linear_k": ("k_proj",), "linear_v": ("v_proj",), "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"), "linear_fc1_gate": ("gate_proj",), "linear_fc1_up": ("up_proj",), "linear_fc2": ("down_proj",),
}  # fmt: skip
_LINEAR_NAMES = _ATTENTION_NAMES | {"gate_proj", "up_proj", "down_proj"}


class Codec(Struct, frozen=True):
    """Both ways of one kind of value. ``samples`` are values that the round-trip test writes and reads back."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    samples: tuple[Any, ...] = ()


def flag(raw: Any) -> bool:
    """A truth value in any spelling of YAML, Python and command lines."""
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("neither true nor false")


def count(raw: Any) -> int:
    """A positive whole number; ``5e8`` and ``"4_096"`` are read too."""
    if isinstance(raw, bool):
        raise ValueError("a truth value where a number is expected")
    number = float(raw.replace("_", "").replace(",", "") if isinstance(raw, str) else raw)
    if number != int(number) or abs(number) > 1 << 60:
        raise ValueError("not a whole number")
    return int(number)


def positive(raw: Any) -> Any:
    """A count above zero; ``-1`` and ``0`` leave the matter to the framework."""
    number = count(raw)
    return number if number > 0 else SILENT


def fraction(raw: Any) -> float:
    """A number above 0 and at most 1."""
    number = float(raw)
    if not 0 < number <= 1:
        raise ValueError("a fraction above 0 and at most 1, so this cannot run")
    return number


def dtype(raw: Any) -> Any:
    """``torch.bfloat16``, ``bfloat16``, ``bf16``, ...; ``auto`` is the checkpoint's own."""
    word = str(raw).strip().lower().rsplit(".", 1)[-1]
    if word in ("auto", "none", ""):
        return SILENT
    if word not in _DTYPES:
        raise ValueError("not a dtype of weights")
    return _DTYPES[word]


def names(raw: Any) -> tuple[str, ...]:
    """Module names: a list, or one text with commas or blanks between."""
    items = raw if isinstance(raw, list | tuple) else re.split(r"[,\s]+", str(raw).strip("[]() "))
    found = tuple(str(item).strip("'\" ") for item in items)
    return tuple(item for item in found if item)


def targets(raw: Any) -> Any:
    """LoRA target modules; the usual sets have names of their own, which also hold for models with other module names."""
    if isinstance(raw, str) and raw.strip().lower() in ("all-linear", "all", "all_linear"):
        return "all-linear"
    if isinstance(raw, str) and any(sign in raw for sign in "\\(*^"):
        raw = _leaves_of_pattern(raw)
    found = names(raw)
    leaves = frozenset(leaf for name in found for leaf in _FUSED.get(name, (name,)))
    if leaves in (frozenset({"all-linear"}), frozenset({"all"})) or (leaves >= _LINEAR_NAMES and not leaves - _LINEAR_NAMES):
        return "all-linear"
    if leaves == _ATTENTION_NAMES:
        return "attention"
    if leaves == {"q_proj", "v_proj"}:
        return "qv"
    if not found:
        return SILENT
    return found


def _leaves_of_pattern(pattern: str) -> list[str]:
    """The projections that a regular expression over module names lists; the expression itself is never run."""
    found = [f"{word}_proj" for group in re.findall(r"\(([a-z_|]+)\)_proj", pattern) for word in group.split("|")]
    found += [word for group in re.findall(r"\(([a-z_|]*_proj[a-z_|]*)\)", pattern) for word in group.split("|")]
    if not found:
        raise ValueError("a regular expression over module names, whose matches are not listed in it")
    return found


def write_targets(value: Any) -> Any:
    """The way back: names that every llama-like model has."""
    if value == "attention":
        return ["q_proj", "k_proj", "v_proj", "o_proj"]
    if value == "qv":
        return ["q_proj", "v_proj"]
    return value if isinstance(value, str) else list(value)


def allocator(raw: Any) -> Mapping[str, Any]:
    """``PYTORCH_CUDA_ALLOC_CONF``: ``expandable_segments:True,max_split_size_mb:128``."""
    found: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", str(raw)):
        name, colon, text = part.strip().strip("'\"").partition(":")
        if not colon or not name:
            raise ValueError("not name:value pairs")
        word = text.strip()
        lower = word.lower()
        found[name.strip()] = lower == "true" if lower in ("true", "false") else _number(word)
    return found


def write_allocator(value: Mapping[str, Any]) -> str:
    """The way back."""
    return ",".join(f"{name}:{item}" for name, item in value.items())


def identifier(raw: Any) -> Any:
    """A model's name or path; ``pretrained=True`` is a switch beside a name, and says none."""
    if raw is None or isinstance(raw, bool):
        return SILENT
    word = str(raw).strip()
    if not word or "\n" in word or len(word) > 300 or word.startswith("$"):
        raise ValueError("not a name")
    return of_builder(word) or word


def _number(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _same(value: Any) -> Any:
    return value


def _not(raw: Any) -> bool:
    return not flag(raw)


def _long(value: str) -> str:
    return _LONG[value]


def _lengths_of_list(raw: Any) -> int:
    items = names(raw)
    return len(items)


CODECS: Mapping[str, Codec] = {
    "flag": Codec(flag, _same, (True, False)),
    "not-flag": Codec(_not, _not, (True, False)),
    "count": Codec(positive, _same, (1, 7)),
    "elements": Codec(count, _same, (100_000, 500_000_000)),
    "fraction": Codec(fraction, _same, (0.25, 1.0)),
    "probability": Codec(lambda raw: float(raw), _same, (0.0, 0.05)),
    "gib": Codec(lambda raw: float(raw), _same, (80.0,)),
    "dtype": Codec(dtype, _long, ("fp32", "bf16", "fp16")),
    "short-dtype": Codec(dtype, _same, ("fp32", "bf16", "fp16")),
    "names": Codec(names, list, (("embed_tokens", "lm_head"),)),
    "targets": Codec(targets, write_targets, ("all-linear", "attention", "qv", ("q_proj", "gate_proj"))),
    "identifier": Codec(identifier, _same, ("meta-llama/Llama-3.1-8B",)),
    "allocator": Codec(allocator, write_allocator, ({"expandable_segments": True, "max_split_size_mb": 128},)),
    "devices": Codec(_lengths_of_list, lambda value: ",".join(str(i) for i in range(value)), (1, 4)),
}
