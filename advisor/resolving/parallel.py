"""How the job is divided: ranks, groups, and the strategy's own settings."""

from __future__ import annotations

from advisor.resolving import buckets, family, fsdp_units
from advisor.resolving.draft import Draft

OWN_UNITS = (1, 14)  # accelerate: fsdp2_prepare_model divides the embedding, and the last norm with the head, on their own


def settle(draft: Draft) -> None:
    """``parallel.*``, ``offload.*`` and the number of GPUs."""
    for name in ("tensor", "context", "pipeline", "expert"):
        draft.default(f"parallel.{name}", 1, "every framework", "not asked for")
    if draft.framework in family.MEGATRON or draft.get("parallel.strategy") in family.MEGATRON_STRATEGIES:
        draft.default(
            "parallel.expert_tensor", draft.get("parallel.tensor"), "megatron/training/arguments.py", "experts are divided as everything else unless told"
        )
    draft.default("parallel.expert_tensor", 1, "every framework", "not asked for")
    _strategy(draft, _gpus(draft))
    _groups(draft)
    _own_settings(draft)
    for name in ("parameters", "optimizer", "gradients"):
        draft.default(f"offload.{name}", "none", "every framework", "offloading is off unless asked for")
    draft.default("offload.tiled_mlp", False, "every framework", "not asked for")


def _gpus(draft: Draft) -> int | None:
    """GPUs of the job, where they are known or follow from the groups or the ranks that were seen."""
    hardware, nodes = draft.get("hardware.gpus_per_node"), draft.get("hardware.nodes")
    groups = [draft.get(f"parallel.{name}") for name in ("shard", "replicate")]
    model = draft.get("parallel.tensor") * draft.get("parallel.pipeline")
    if hardware is not None:
        draft.assume("hardware.nodes", 1, "no further node was named")
        return int(hardware) * int(draft.get("hardware.nodes"))
    if groups[0] is not None:
        total = groups[0] * (groups[1] or 1) * model
        count = max(1, nodes or 1)
        draft.infer("hardware.gpus_per_node", max(1, total // count), "GPUs = shard x replicate x tensor x pipeline")
        draft.infer("hardware.nodes", count, "as given, else one")
        return int(total)
    ranks = [f.rank for f in draft.evidence.failures if f.rank is not None] + [f.gpu for f in draft.evidence.failures if f.gpu is not None]
    seen = max([rank + 1 for rank in ranks] + [len({d.index for d in draft.evidence.devices})])
    if seen > 1:
        draft.infer("hardware.gpus_per_node", seen, "the highest rank or device that was seen")
        draft.infer("hardware.nodes", 1, "no further node was seen")
        return seen
    return None


def _strategy(draft: Draft, gpus: int | None) -> None:
    if draft.get("parallel.device_map") is not None:
        draft.infer("parallel.strategy", "none", "a device_map divides the layers")
    if gpus is None or gpus > 1 or draft.framework in family.MEGATRON:
        draft.table("parallel.strategy", alternatives=("zero2", "zero3", "fsdp1", "fsdp2"))
    if gpus is None or gpus == 1:
        draft.assume("parallel.strategy", "none", "nothing names more than one GPU", alternatives=("ddp", "zero3", "fsdp2"))
    draft.assume(
        "parallel.strategy", "ddp", f"{gpus} GPUs and no sharding named: each rank holds everything", alternatives=("zero2", "zero3", "fsdp1", "fsdp2")
    )


def _groups(draft: Draft) -> None:
    strategy = draft.get("parallel.strategy")
    model = draft.get("parallel.tensor") * draft.get("parallel.pipeline")
    if draft.get("hardware.gpus_per_node") is None and strategy in family.SHARDING and draft.get("parallel.shard") is None:
        draft.assume("hardware.gpus_per_node", 8, "a sharding strategy is named and no number of GPUs; eight is a usual node", alternatives=(2, 4, 8, 16))
    draft.assume("hardware.gpus_per_node", max(1, model), "nothing names more GPUs")
    draft.assume("hardware.nodes", 1, "no further node was named")
    gpus = draft.get("hardware.gpus_per_node") * draft.get("hardware.nodes")
    divided = max(1, gpus // model)
    if strategy in family.SHARDING:
        shard = draft.get("parallel.shard")
        replicate = draft.get("parallel.replicate")
        draft.infer("parallel.shard", max(1, divided // (replicate or 1)), f"{gpus} GPUs / (tensor x pipeline = {model}) / replicate {replicate or 1}")
        shard = draft.get("parallel.shard")
        draft.infer("parallel.replicate", max(1, divided // shard), f"{gpus} GPUs / (tensor x pipeline = {model}) / shard {shard}")
    else:
        draft.infer("parallel.shard", 1, f"strategy {strategy} divides nothing")
        draft.infer("parallel.replicate", 1 if draft.get("parallel.device_map") else max(1, divided // draft.get("parallel.shard")), f"{gpus} GPUs / {model}")


def _own_settings(draft: Draft) -> None:
    strategy = draft.get("parallel.strategy")
    if strategy in family.FSDP:
        draft.table("parallel.reshard_after_forward", "parallel.limit_all_gathers", "parallel.prefetch")
        draft.default("parallel.reshard_after_forward", True, "torch FSDP FULL_SHARD / fully_shard")
        draft.default("parallel.limit_all_gathers", True, "torch FullyShardedDataParallel limit_all_gathers")
        draft.default("parallel.prefetch", "backward-pre", "torch FullyShardedDataParallel backward_prefetch; fully_shard's implicit prefetch")
        fsdp_units.settle(draft)
    if strategy == "fsdp2" and draft.framework in family.ACCELERATE and (draft.major_minor("accelerate") or (0, 0)) >= OWN_UNITS:
        draft.default("parallel.wrap.embeddings", "own unit", "accelerate 1.14 utils/fsdp_utils.py fsdp2_prepare_model", "embedding, and last norm with head")
    if strategy == "ddp":
        draft.default("parallel.gradient_as_bucket_view", False, "torch DistributedDataParallel gradient_as_bucket_view")
    if strategy in family.ZERO:
        buckets.settle(draft)
    draft.table("parallel.sequence")
    draft.default("parallel.sequence", False, "Megatron --sequence-parallel", "off unless asked for")
    if draft.get("parallel.context") > 1:
        draft.table("parallel.context_kind")
        draft.assume("parallel.context_kind", "ring", "the usual form", alternatives=("ulysses",))
    if draft.get("parallel.pipeline") > 1:
        draft.default("parallel.virtual_stages", 1, "no interleaving asked for")
        draft.assume("parallel.pipeline_rank", "max", "the stage that needs most is meant")
