"""NeMo-RL: two backends side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count, flag
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
    return found


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
