"""FSDP as Hugging Face's Trainer and accelerate set it up: accelerate's own plugin, wrapping policy and widening of what trains.

Trainer gives accelerate peft's own policy for adapters under FSDP1 alone: it does so where the optimizer is made after the model is divided, which FSDP2
does not allow (transformers 4.57.1 and 5.24 ``delay_optimizer_creation``). FSDP2's units are the blocks, adapters within them.

Read: accelerate 1.0.1 and 1.15.0 accelerator.py ``prepare_model`` and utils/fsdp_utils.py ``fsdp2_prepare_model``; transformers 4.48.1
trainer.py ``_fsdp_qlora_plugin_updates`` (5.24: distributed/fsdp.py ``update_fsdp_plugin_peft``); peft 0.13.2 utils/other.py ``fsdp_auto_wrap_policy``.
"""

from __future__ import annotations

import dataclasses
import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from advisor.job import Job
from advisor.simulation.quantising import DTYPES, LAYOUTS


def unsplit(model: Any) -> list[str]:
    """Class names of the blocks that are never split (``_no_split_modules``), of the model within an adapter's wrapper too."""
    found: list[str] = []
    for module in model.modules():
        found += [name for name in getattr(module, "_no_split_modules", None) or () if name not in found]
    return found


def has_fsdp2() -> bool:
    """Whether this accelerate divides with FSDP2 (since 1.6)."""
    try:
        return hasattr(importlib.import_module("accelerate.utils.fsdp_utils"), "fsdp2_prepare_model")
    except ImportError:
        return False


def fsdp2(model: torch.nn.Module, job: Job, mesh: DeviceMesh) -> torch.nn.Module:
    """accelerate's own function, given what it asks an ``Accelerator`` for."""
    from accelerate.utils import fsdp_utils

    plugin = _plugin(model, job, fsdp_version=2, reshard_after_forward=job.parallel.reshard_after_forward is not False)
    asked: Any = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="no" if _mixed(job) is None else job.precision.compute,
        is_main_process=False,
        torch_device_mesh=mesh,
        parallelism_config=SimpleNamespace(fsdp_dim_names=list(mesh.mesh_dim_names or ())),
        device=torch.device("meta"),
    )
    divided: torch.nn.Module = fsdp_utils.fsdp2_prepare_model(asked, model)
    return divided


def fsdp1(model: torch.nn.Module, job: Job, device: str) -> torch.nn.Module:
    """``FullyShardedDataParallel`` with the plugin's arguments, then flat parameters that train widened under mixed precision."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    plugin = _plugin(model, job)
    anyplugin: Any = plugin
    whole: Any = FullyShardedDataParallel(
        model,
        sharding_strategy=plugin.sharding_strategy,
        cpu_offload=plugin.cpu_offload,
        auto_wrap_policy=plugin.auto_wrap_policy,
        mixed_precision=plugin.mixed_precision_policy,
        backward_prefetch=plugin.backward_prefetch,
        forward_prefetch=bool(plugin.forward_prefetch),
        use_orig_params=bool(plugin.use_orig_params),
        ignored_modules=anyplugin.ignored_modules,
        limit_all_gathers=bool(plugin.limit_all_gathers),
        device_id=torch.device("cpu") if device == "cpu" else None,
    )
    if _mixed(job) is not None and not _quantised(job):
        for module in FullyShardedDataParallel.fsdp_modules(whole):
            flat = module._flat_param if module._has_params else None
            if flat is not None and flat.requires_grad and flat.dtype != torch.float32:
                flat.data = flat.data.to(torch.float32)
                handle: Any = module._handle
                handle._orig_param_dtype = torch.float32
    divided: torch.nn.Module = whole
    return divided


def _plugin(model: torch.nn.Module, job: Job, **more: Any) -> Any:
    from accelerate import FullyShardedDataParallelPlugin

    parallel = job.parallel
    prefetch = {None: "BACKWARD_PRE", "none": "NO_PREFETCH"}.get(parallel.prefetch, str(parallel.prefetch).upper().replace("-", "_"))
    whole = parallel.wrap is not None and parallel.wrap.blocks == "root"
    written: dict[str, Any] = {
        "sharding_strategy": "FULL_SHARD" if parallel.reshard_after_forward is not False else "SHARD_GRAD_OP",
        "backward_prefetch": prefetch,
        "auto_wrap_policy": "NO_WRAP" if whole else "TRANSFORMER_BASED_WRAP",
        "transformer_cls_names_to_wrap": unsplit(model),
        "limit_all_gathers": parallel.limit_all_gathers is not False,
        "cpu_offload": job.offload.parameters == "cpu",
        **more,
    }
    if "fsdp_version" in more:
        for old in ("sharding_strategy", "backward_prefetch", "limit_all_gathers"):
            written.pop(old)
    plugin: Any = FullyShardedDataParallelPlugin(**written)
    plugin.set_auto_wrap_policy(model)
    if hasattr(model, "peft_config") and "fsdp_version" not in more and not whole:
        other: Any = importlib.import_module("peft.utils.other")
        plugin.auto_wrap_policy = other.fsdp_auto_wrap_policy(model)
    compute = _mixed(job)
    if _quantised(job) and "fsdp_version" not in more:
        plugin.set_mixed_precision(DTYPES[job.precision.weights or "bf16"], override=True)  # of the quantised storage, as Trainer does
    elif compute is not None:
        plugin.set_mixed_precision(job.precision.compute)
        reduce = DTYPES.get(job.precision.reduce or "") if job.precision.mixed == "fsdp" else None
        if reduce is not None:  # accelerate takes a policy of the caller's own too, which may reduce in another dtype than it computes in
            plugin.mixed_precision_policy = dataclasses.replace(plugin.mixed_precision_policy, reduce_dtype=reduce)
    return plugin


def _mixed(job: Job) -> torch.dtype | None:
    return DTYPES.get(job.precision.compute or "bf16") if job.precision.mixed in ("autocast", "fsdp") else None


def _quantised(job: Job) -> bool:
    return job.method.base in LAYOUTS
