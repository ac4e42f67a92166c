"""NeMo-RL: two backends side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count, flag
from advisor.frameworks.codecs import names as names_of
from advisor.job import Job

_NEMO = {
    "tensor_model_parallel_size": "parallel.tensor", "pipeline_model_parallel_size": "parallel.pipeline", "context_parallel_size": "parallel.context",
    "expert_model_parallel_size": "parallel.expert", "expert_tensor_parallel_size": "parallel.expert_tensor",
}  # fmt: skip

_NEMO_DTENSOR = {"tensor_parallel_size": "parallel.tensor", "context_parallel_size": "parallel.context", "expert_parallel_size": "parallel.expert"}


def nemo_parallel(raw: Mapping[str, Any]) -> dict[str, Any]:
    """NeMo-RL holds two backends' settings side by side; those of the enabled one count."""
    megatron = {k.rsplit(".", 1)[-1]: v for k, v in raw.items() if ".megatron_cfg." in k and v is not None}
    dtensor = {k.rsplit(".", 1)[-1]: v for k, v in raw.items() if ".dtensor_cfg." in k and v is not None}
    by_megatron = flag(megatron["enabled"]) if "enabled" in megatron else bool(megatron) and not flag(dtensor.get("enabled", not megatron))
    if not by_megatron and not dtensor:
        return {}
    chosen, names = (megatron, _NEMO) if by_megatron else (dtensor, _NEMO_DTENSOR)
    found: dict[str, Any] = {}
    if "enabled" in chosen or by_megatron:
        found["parallel.strategy"] = "megatron-distributed" if by_megatron else "fsdp2"
    found |= {field: count(chosen[name]) for name, field in names.items() if name in chosen}
    if "sequence_parallel" in chosen:
        found["parallel.sequence"] = flag(chosen["sequence_parallel"])
    if "activation_checkpointing" in chosen:
        found["activations.checkpointing"] = "full" if flag(chosen["activation_checkpointing"]) else "none"
    if flag(chosen.get("cpu_offload", False)):
        found |= {"offload.parameters": "cpu", "offload.optimizer": "cpu", "offload.gradients": "cpu"}
    return found | (_megatron(megatron) if by_megatron else {})


def _megatron(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What only Megatron's side has: recomputation by granularity, gradients in 16 bits unless told, states and activations on the host."""
    found: dict[str, Any] = {}
    if "grad_reduce_in_fp32" in seen:
        width = "fp32" if flag(seen["grad_reduce_in_fp32"]) else "bf16"
        found |= {"precision.gradients": width, "precision.reduce": width}
    if flag(seen.get("activation_checkpointing", False)) and str(seen.get("recompute_granularity")) == "selective":
        found |= {"activations.checkpointing": "selective", "activations.selective": {"ops": names_of(seen.get("recompute_modules") or ["core_attn"])}}
    if flag(seen.get("optimizer_cpu_offload", False)):
        found["offload.optimizer"] = "cpu"
    if flag(seen.get("fine_grained_activation_offloading", False)):
        found["offload.activations"] = "cpu"
    return found


def nemo_budget(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Rows are packed, or micro batches filled, to a budget of tokens; one that is only a product of other settings is not repeated."""
    for kind in ("sequence_packing", "dynamic_batching"):
        on, tokens = raw.get(f"policy.{kind}.enabled"), raw.get(f"policy.{kind}.train_mb_tokens")
        if on is not None and flag(on) and tokens is not None:
            return {"batch.token_budget": count(tokens)}
    return {}


def nemo_base(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What the name of the base file says, where the file itself was not given: ``grpo_math_1B_megatron.yaml``."""
    text = " ".join(str(value) for value in raw.values() if value is not None).lower()
    found: dict[str, Any] = {"parallel.strategy": "megatron-distributed"} if "megatron" in text else {}
    objective = next((kind for kind in ("grpo", "dpo", "sft") if kind in text.rsplit("/", 1)[-1]), None)
    return found | ({"objective": objective} if objective else {})


def write_nemo(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The settings of the backend that the strategy needs."""
    megatron = str(after.parallel.strategy or "").startswith("megatron")
    prefix, names = ("policy.megatron_cfg.", _NEMO) if megatron else ("policy.dtensor_cfg.", _NEMO_DTENSOR)
    found: dict[str, Any] = {prefix + name: wanted[field] for name, field in names.items() if field in wanted}
    if "parallel.strategy" in wanted:
        found |= {"policy.megatron_cfg.enabled": megatron, "policy.dtensor_cfg.enabled": not megatron}
    if "parallel.sequence" in wanted:
        found[prefix + "sequence_parallel"] = wanted["parallel.sequence"]
    if "activations.checkpointing" in wanted:
        found[prefix + "activation_checkpointing"] = wanted["activations.checkpointing"] != "none"
    if wanted.get("offload.optimizer") == "cpu" and not megatron:
        found[prefix + "cpu_offload"] = True
    return found
