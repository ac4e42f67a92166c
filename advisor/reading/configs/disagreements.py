"""Settings of one text that cannot both hold: named, so that what is counted instead is no silent choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advisor.evidence import Conflict, Fact, NotUnderstood
from advisor.frameworks.key import Key

# Both switched on are refused by transformers (TrainingArguments.__post_init__), DeepSpeed (runtime/config.py) and Megatron (arguments.py).
_HALVES = (("bf16", "fp16"), ("bf16.enabled", "fp16.enabled"), ("bfloat16.enabled", "fp16.enabled"))


def both_halves(keys: Sequence[Key], facts: Mapping[str, Fact], name: str) -> tuple[Conflict, ...]:
    """bf16 and fp16 both on, within one call or file: the one that is kept, and the other."""
    kept = facts.get("precision.compute")
    if kept is None:
        return ()
    on = {(key.scope, key.path): key for key in keys if key.value is True or str(key.value).lower() == "true"}
    # "auto" is bf16 wherever the card has it (axolotl utils/config/__init__.py resolve_dtype); under DeepSpeed's "enabled" it is what the arguments say
    able = {(key.scope, key.path): key for key in keys if key.path == "bf16" and str(key.value).lower() == "auto"}
    for one, other in _HALVES:
        for (scope, path), key in (able | on).items():
            if path != one or (second := on.get((scope, other))) is None:
                continue
            loser, value = (second, "fp16") if kept.value == "bf16" else (key, "bf16")
            return (Conflict("precision.compute", kept, Fact("precision.compute", value, "read", where=f"{name}:{loser.line}", text=loser.text)),)
    return ()


def both_engines(keys: Sequence[Key], framework: str | None, name: str) -> tuple[NotUnderstood, ...]:
    """DeepSpeed and FSDP asked for in one call or file.

    transformers Trainer.__init__ ("Using --fsdp xxx together with --deepspeed is not possible") and axolotl's check_fsdp_deepspeed raise; axolotl passes
    ``fsdp: true`` on for an ``fsdp_config`` alone (core/builders/base.py), which transformers then refuses.
    """
    for first in keys:
        if first.path.partition(".")[0] != "deepspeed" or _is_off(first.value):
            continue
        for other in keys:
            head = other.path.partition(".")[0]
            if other.scope == first.scope and (head == "fsdp" or (head == "fsdp_config" and framework == "axolotl")) and not _is_off(other.value):
                who = "axolotl and transformers refuse" if framework == "axolotl" else "transformers refuses"
                why = f"{who} DeepSpeed beside FSDP ({other.path}, line {other.line}), so this cannot run: take one of the two out; FSDP was counted"
                return (NotUnderstood(f"{name}:{first.line}", f"{first.path} = {str(first.value)[:60]}", why),)
    return ()


def _is_off(value: object) -> bool:
    return value is None or value is False or value in ("", [], {}) or str(value).lower() in ("none", "null", "false")
