"""Holding state in host memory or on disk. The link to the host is what it costs."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.conditions import ACCELERATE, DEEPSPEED, FSDP, FSDP_NATIVE, ZERO, first, framework_lacks
from advisor.techniques.curing import cured, ineffective
from advisor.techniques.technique import NotApplicable, technique

ON_HOST = frozenset({"adamw", "cpu-adam"})  # optimizers that the engines have a host version of (DeepSpeedCPUAdam, torch AdamW on CPU tensors)


def _host_optimizer(run: Run) -> str | None:
    name = run.job.optimizer.name
    if name is None or name in ON_HOST:
        return None
    return f"the optimizer {name} has no version that steps on the host; AdamW has"


def _state_left(run: Run) -> str | None:
    if run.job.optimizer.in_backward:
        return "the step runs inside the backward pass; offloading waits for whole gradients"
    if run.job.method.kind in ("lomo", "badam"):
        return f"{run.job.method.kind} keeps next to no optimizer state"
    return None


@technique("offload-optimizer", tier="shard")
def offload_optimizer(run: Run) -> Run | NotApplicable:
    """Keep optimizer state (and the fp32 master) in host memory and step there; gradients go down, new weights come up."""
    job, freed = run.job, cured(run, also=ineffective("offload.optimizer"))
    if job.offload.optimizer in ("cpu", "nvme"):
        return freed or NotApplicable(f"optimizer state is on {job.offload.optimizer} already")
    if reason := first(_state_left(run), _host_optimizer(run)):
        return NotApplicable(reason)
    strategy = job.parallel.strategy or "none"
    if strategy in FSDP:
        return NotApplicable("FSDP moves parameters, gradients and state to the host together: that is offload-parameters")
    if strategy in ZERO:
        return run.but(offload={"optimizer": "cpu"}, optimizer={"name": "cpu-adam"})
    if strategy.startswith("megatron"):
        if reason := framework_lacks(run, frozenset({"megatron-lm", "megatron-bridge", "verl", "ms-swift", "custom"}), "Megatron's offloaded optimizer"):
            return NotApplicable(reason)
        return run.but(offload={"optimizer": "cpu"})
    if job.method.kind in ("lora", "dora"):
        return NotApplicable("only adapters have optimizer state, and that is small")
    if job.framework.name == "torchtune":
        return run.but(offload={"optimizer": "cpu"})  # torchao CPUOffloadOptimizer, single-device recipes
    if reason := framework_lacks(run, DEEPSPEED, "an optimizer on the host"):
        return NotApplicable(reason)
    from advisor.techniques.sharding import _precision_of

    ranks = max(1, (job.parallel.shard or 1) * (job.parallel.replicate or 1))
    changes = _precision_of(run, "deepspeed")
    changes["optimizer"] = {**changes.get("optimizer", {}), "name": "cpu-adam"}
    return run.but(parallel={"strategy": "zero2", "shard": ranks, "replicate": 1}, offload={"optimizer": "cpu"}, **changes)


@technique("offload-parameters", tier="shard")
def offload_parameters(run: Run) -> Run | NotApplicable:
    """Keep the divided parameters in host memory and bring each block when it is used."""
    job, freed = run.job, cured(run, also=ineffective("offload.parameters"))
    strategy = job.parallel.strategy or "none"
    if job.offload.parameters in ("cpu", "nvme"):
        return freed or NotApplicable(f"parameters are on {job.offload.parameters} already")
    if strategy == "zero3":
        if job.framework.name == "openrlhf":
            return NotApplicable("openrlhf offloads the optimizer (adam_offload), not the parameters of the model that it trains")
        if reason := first(_state_left(run), _host_optimizer(run)):
            return NotApplicable(reason)
        changes: dict[str, Any] = {"parameters": "cpu"}
        if job.offload.optimizer in (None, "none"):
            changes["optimizer"] = "cpu"  # DeepSpeed steps where the parameters are
        return run.but(offload=changes, optimizer={"name": "cpu-adam"})
    if strategy in FSDP:
        if reason := first(_state_left(run), framework_lacks(run, ACCELERATE | (FSDP_NATIVE - {"litgpt"}), "FSDP's CPU offload")):
            return NotApplicable(reason)
        if strategy == "fsdp1" and (job.batch.gradient_accumulation or 1) > 1 and job.parallel.sync_each_microbatch is False:
            return NotApplicable("FSDP1's CPU offload does not work with accumulation outside its synchronisation (no_sync)")
        if job.framework.name == "verl" and strategy == "fsdp1":
            return NotApplicable("verl offloads during the pass with FSDP2 only (offload_policy); with FSDP1 it moves the model between phases")
        if job.optimizer.name in ("adamw-8bit", "paged-adamw-8bit", "paged-adamw", "adamw-4bit"):
            return NotApplicable("bitsandbytes' optimizers step on the card, and FSDP's offload leaves the parameters on the host")
        return run.but(offload={"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"})
    return NotApplicable(f"parameters can be moved out block by block only where a strategy divides them (ZeRO-3, FSDP), not under {strategy}")


@technique("offload-nvme", tier="shard")
def offload_nvme(run: Run) -> Run | NotApplicable:
    """Keep optimizer state and parameters on NVMe disks (ZeRO-Infinity): for when the host's memory is full too."""
    job = run.job
    if reason := framework_lacks(run, DEEPSPEED - {"openrlhf"}, "offloading to NVMe"):
        return NotApplicable(reason)
    if job.parallel.strategy != "zero3":
        return NotApplicable(f"offloading to NVMe is ZeRO-3's (strategy {job.parallel.strategy or 'none'})")
    if job.offload.optimizer != "cpu":
        return NotApplicable(
            "optimizer state is on NVMe already" if job.offload.optimizer == "nvme" else "move the state to the host first; a disk is the next step after it"
        )
    return run.but(offload={"optimizer": "nvme", **({"parameters": "nvme"} if job.offload.parameters == "cpu" else {})})
