"""torchtitan: families and flavors, modes of checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count
from advisor.job import Job

_TITAN = {
    ("llama3", "8B"): "meta-llama/Llama-3.1-8B", ("llama3", "70B"): "meta-llama/Llama-3.1-70B", ("llama3", "405B"): "meta-llama/Llama-3.1-405B",
    ("deepseek_v3", "16B"): "deepseek-ai/deepseek-moe-16b-base", ("deepseek_v3", "671B"): "deepseek-ai/DeepSeek-V3", ("qwen3", "0.6B"): "Qwen/Qwen3-0.6B",
    ("qwen3", "8B"): "Qwen/Qwen3-8B", ("qwen3", "32B"): "Qwen/Qwen3-32B", ("llama4", "17bx16e"): "meta-llama/Llama-4-Scout-17B-16E",
}  # fmt: skip


def titan_model(raw: Mapping[str, Any]) -> dict[str, Any]:
    """torchtitan names a family and a flavor."""
    name, flavor = str(raw.get("model.name") or ""), str(raw.get("model.flavor") or "")
    known = _TITAN.get((name, flavor))
    return {"model.name": known or f"{name} {flavor}".strip()} if name else {}


def titan_tokens(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Sequences of a micro batch, where its size is given in tokens."""
    tokens, context = raw.get("num_tokens_per_microbatch_per_dp_rank"), raw.get("max_context_length")
    return {"batch.micro_batch": max(1, count(tokens) // max(1, count(context)))} if tokens is not None and context is not None else {}


def titan_checkpointing(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``mode`` and, for selective, an operator policy or every n-th layer."""
    mode = str(raw.get("activation_checkpoint.mode") or "").lower()
    if mode not in ("none", "full", "selective"):
        return {}
    found: dict[str, Any] = {"activations.checkpointing": mode}
    option = str(raw.get("activation_checkpoint.selective_ac_option") or "")
    if mode == "selective" and option:
        found["activations.selective"] = {"policy": "op"} if option == "op" else {"every_nth_layer": count(option)}
    return found


def write_titan_checkpointing(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The mode, and the policy of a selective one."""
    found: dict[str, Any] = {"activation_checkpoint.mode": after.activations.checkpointing} if "activations.checkpointing" in wanted else {}
    selective = after.activations.selective
    if selective is not None and (selective.policy or selective.every_nth_layer):
        found["activation_checkpoint.selective_ac_option"] = selective.policy or str(selective.every_nth_layer)
    return found
