"""Divides the built model over the job's ranks, with the sharding code itself and the units that its framework wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from advisor.job import Job
from advisor.run import Run
from advisor.simulation import selective
from advisor.simulation.frameworks import ON_ACCELERATE
from advisor.simulation.quantising import DTYPES
from advisor.simulation.ranks import accelerating, cutting, hosting, pipelining, ring, tensor_parallel
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import torchtitan
from advisor.simulation.tensors import META

Divide = Callable[[torch.nn.Module, Job, str], torch.nn.Module]


def world_of(run: Run) -> int:
    """Ranks of the job's group: GPUs = shard x replicate x tensor x pipeline."""
    parallel = run.effective.parallel
    return (parallel.shard or 1) * (parallel.replicate or 1) * (parallel.tensor or 1) * pipelining.degree(run.effective)


def written(run: Run) -> Job:
    """The job as the sharding code is told of it: that units are freed after their forward pass, which nobody stated, is its own default.

    A framework's default that they stay whole (torchtitan's stages of a pipeline) is passed on: the code's own is another.
    """
    known, job = run.facts.get("parallel.reshard_after_forward"), run.effective
    own = known is not None and known.kind == "default" and job.parallel.reshard_after_forward is True
    return job.but(parallel={"reshard_after_forward": None}) if own else job


def divided(model: torch.nn.Module, job: Job, device: str) -> torch.nn.Module:
    """The model as this rank holds it.

    Raises:
        CannotProbe: a strategy that does not run here.
    """
    strategy = job.parallel.strategy or "none"
    divide = STRATEGIES.get(strategy)
    if divide is None:
        raise CannotProbe(f"the probe does not run the strategy {strategy}: the estimate stands in")
    if pipelining.degree(job) > 1:
        return _staged(model, job, device, divide)
    ring.prepare(model, job)
    if tensor_parallel.size(job) > 1:
        model = tensor_parallel.divided(model, job, mesh_of(job, device)["tp"])
        if tensor_parallel.by_transformers(job):
            return model
    return divide(model, job, device)


def _staged(model: torch.nn.Module, job: Job, device: str, divide: Divide) -> torch.nn.Module:
    """The stages of this rank, each divided on its own over the ranks that hold the same layers."""
    mesh = mesh_of(job, device)["pp"]
    size = pipelining.degree(job)
    numbers = range(mesh.get_local_rank(), size * (job.parallel.virtual_stages or 1), size)
    parts = [(number, divide(part, job, device)) for number, part in zip(numbers, cutting.stages(model, job, numbers), strict=True)]
    return pipelining.Pipeline(parts, job, mesh.get_group())


def _alone(model: torch.nn.Module, _: Job, __: str) -> torch.nn.Module:
    return model


def _ddp(model: torch.nn.Module, job: Job, device: str) -> torch.nn.Module:
    if tensor_parallel.size(job) > 1:  # nothing is replicated (see scope)
        return model
    options: dict[str, Any] = {"gradient_as_bucket_view": bool(job.parallel.gradient_as_bucket_view), "init_sync": False}
    whole = torch.nn.parallel.DistributedDataParallel(model, **options)
    if device == META:  # the group that sends nothing has no result to hand on: the bucket itself is it
        distributed: Any = dist
        _at_once.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}  # DDP compares them
        whole.register_comm_hook(None, _at_once)
    return whole


def _at_once(_: object, bucket: Any) -> Any:
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _fsdp2(model: torch.nn.Module, job: Job, device: str) -> torch.nn.Module:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    mesh = data_mesh(job, device)
    if job.framework.name in ON_ACCELERATE and accelerating.has_fsdp2():
        return accelerating.fsdp2(model, job, mesh)
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": job.parallel.reshard_after_forward is not False}
    if job.precision.mixed == "fsdp":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype(job.precision.compute, "bf16"), reduce_dtype=dtype(job.precision.reduce, "fp32"))
    if hosting.wanted(job):
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device == META)  # a machine without an accelerator pins nothing
    anymodel: Any = model
    own = _embeddings_apart(job) or (job.model.source == "torchtitan" and torchtitan.outer_units(job))
    embedding, head = anymodel.get_input_embeddings(), anymodel.get_output_embeddings()
    held = [getattr(module, "weight", None) for module in (embedding, head)]  # a pipeline's stage may have neither
    tied = held[0] is not None and held[0] is held[1]
    if own and not tied and held[0] is not None:
        fully_shard(embedding, **options)
    titan = job.model.source == "torchtitan"
    whole = job.parallel.wrap is not None and job.parallel.wrap.blocks == "root"
    units = [] if whole else list(blocks(model))
    for block in units:
        stays = titan and not own and block is units[-1]  # it would be gathered again at once
        fully_shard(block, **(options | {"reshard_after_forward": False} if stays else options))
    if own and held[1] is not None and not tied:
        norm = _last_norm(model)
        fully_shard([norm, head] if norm is not None else head, **{**options, "reshard_after_forward": False})
    # the root: torch before 2.8 keeps it whole after its forward pass whatever it is told, later ones where they are told nothing, as by torchtitan 0.2.0
    stated = None if titan else job.parallel.reshard_after_forward
    del options["reshard_after_forward"]
    fully_shard(model, **(options if stated is None else options | {"reshard_after_forward": stated}))
    return model


def _fsdp1(model: torch.nn.Module, job: Job, device: str) -> torch.nn.Module:
    if (job.parallel.replicate or 1) > 1:
        raise CannotProbe("the probe does not run FSDP1's hybrid sharding yet: the estimate stands in")
    return accelerating.fsdp1(model, job, device)


STRATEGIES: dict[str, Divide] = {"none": _alone, "ddp": _ddp, "fsdp2": _fsdp2, "fsdp1": _fsdp1}


def mesh_of(job: Job, device: str) -> DeviceMesh:
    """Every rank: stages (``pp``), replicas (HSDP), those that a parameter is divided over, and those that share a layer's products (``tp``).

    Only what there is; in torchtitan's order, in which neighbours share most (distributed/parallel_dims.py).
    """
    shard, replicate, ranks = job.parallel.shard or 1, job.parallel.replicate or 1, tensor_parallel.size(job)
    sizes = {"pp": pipelining.degree(job), "dp_replicate": replicate, "dp_shard": shard, "tp": ranks}
    kept = {name: number for name, number in sizes.items() if number > 1 or (name == "dp_shard" and (replicate > 1 or ranks == 1))}
    return init_device_mesh(device, tuple(kept.values()), mesh_dim_names=tuple(kept))


def data_mesh(job: Job, device: str) -> DeviceMesh:
    """The ranks that FSDP2 divides over, without those of other layers and those of a layer's products."""
    mesh = mesh_of(job, device)
    names = mesh.mesh_dim_names or ()
    return mesh[tuple(name for name in names if name not in ("pp", "tp"))] if {"pp", "tp"} & set(names) else mesh


def dtype(name: str | None, otherwise: str) -> torch.dtype:
    """A job's dtype as torch's."""
    return DTYPES.get(name or otherwise, DTYPES[otherwise])


def blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model's repeated blocks, what its class says is never split, with the checkpointing around them."""
    names = set(accelerating.unsplit(model))
    within = {id(selective.wrapped(m)) for m in model.modules() if selective.wrapped(m) is not m}
    for module in model.modules():
        if type(selective.wrapped(module)).__name__ in names and id(module) not in within:
            yield module


def _embeddings_apart(job: Job) -> bool:
    wrap: Any = job.parallel.wrap
    written = wrap.get("embeddings") if isinstance(wrap, dict) else getattr(wrap, "embeddings", None)
    return str(written or "root") in ("own unit", "own-unit", "own")


def _last_norm(model: Any) -> torch.nn.Module | None:
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    found: torch.nn.Module | None = next((getattr(decoder, name) for name in ("norm", "ln_f", "final_layer_norm") if hasattr(decoder, name)), None)
    return found
