"""Several ranks: how the model is divided, and how their ledgers become one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace

from advisor.job import Job
from advisor.ledger import Ledger
from advisor.measurement.watching import configured
from advisor.simulation.request import CannotProbe
from advisor.units import show


def begin(device: str) -> int:
    """Join the group that torchrun has set up; returns this rank (0 where there is none)."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return 0
    if device.startswith("cuda"):  # before the group: NCCL takes the current card
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return dist.get_rank()


Fill = Callable[[torch.nn.Module], None]
Divide = Callable[[torch.nn.Module, Fill], torch.nn.Module]


def divider(job: Job, device: str) -> Divide | None:
    """How the job's strategy divides a model over the ranks that run; ``None``: one rank.

    What it returns takes the model on meta and what makes it on the device: FSDP divides before anything is made, DDP wraps what is there.

    Raises:
        CannotProbe: the ranks do not match the job, or the strategy is none of ddp and fsdp2.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    parallel = job.parallel
    wanted = (parallel.shard or 1) * (parallel.replicate or 1) * (parallel.tensor or 1) * (parallel.pipeline or 1)
    if world == 1:
        if parallel.strategy in ("fsdp1", "fsdp2", "zero1", "zero2", "zero3", "megatron", "megatron-distributed", "megatron-fsdp") and wanted > 1:
            raise CannotProbe(f"the job divides over {wanted} ranks; validate it with --nproc {wanted} (here or on that many cards)")
        return None
    if wanted != world:
        raise CannotProbe(f"the job is of {wanted} ranks (shard x replicate x tensor x pipeline) and {world} run; start as many")
    apart = [name for name in ("tensor", "pipeline", "context", "expert") if (getattr(parallel, name) or 1) > 1]
    if apart:
        raise CannotProbe(f"{apart[0]} parallelism needs its own framework: watch that run with advisor.watch")
    if parallel.strategy == "ddp":
        return lambda model, fill: _replicated(model, fill, job)
    if parallel.strategy == "fsdp2":
        return lambda model, fill: _fully_shard(model, fill, job, device)
    raise CannotProbe(f"several ranks are measured with ddp and fsdp2; {parallel.strategy} needs its own framework: watch that run with advisor.watch")


def _replicated(model: torch.nn.Module, fill: Fill, job: Job) -> torch.nn.Module:
    fill(model)
    options: dict[str, Any] = {"gradient_as_bucket_view": bool(job.parallel.gradient_as_bucket_view)}
    return torch.nn.parallel.DistributedDataParallel(model, **options)


def _fully_shard(model: torch.nn.Module, fill: Fill, job: Job, device: str) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from advisor.simulation.quantising import DTYPES

    shard, copies = job.parallel.shard or 1, job.parallel.replicate or 1
    kind = device.partition(":")[0]
    mesh = init_device_mesh(kind, (copies, shard), mesh_dim_names=("replicate", "shard")) if copies > 1 else init_device_mesh(kind, (shard,))
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": job.parallel.reshard_after_forward is not False}
    if job.precision.mixed == "fsdp":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=DTYPES[job.precision.compute or "bf16"], reduce_dtype=DTYPES[job.precision.reduce or "fp32"])
    for _, block in configured.blocks(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
    fill(model)
    return model


def merged(ledgers: Sequence[Ledger]) -> Ledger:
    """The ledger of the largest rank, with the mean and the spread of all said beside it."""
    peaks = [ledger.peak().bytes for ledger in ledgers]
    largest = ledgers[peaks.index(max(peaks))]
    if len(ledgers) == 1:
        return largest
    mean = sum(peaks) // len(peaks)
    says = f"{len(peaks)} ranks: largest {show(max(peaks))} (rank {peaks.index(max(peaks))}), mean {show(mean)}, spread {show(max(peaks) - min(peaks))}"
    return replace(largest, notes=(*largest.notes, says))


def spread(ledgers: Sequence[Ledger]) -> dict[str, Any]:
    """``ranks``: how many, and the bytes at their peaks: largest (and whose), mean, and largest less smallest; empty for one rank."""
    peaks = [ledger.peak().bytes for ledger in ledgers]
    if len(peaks) == 1:
        return {}
    most = max(peaks)
    return {"ranks": {"number": len(peaks), "max": most, "largest": peaks.index(most), "mean": sum(peaks) // len(peaks), "spread": most - min(peaks)}}


def gathered(ledger: Ledger) -> list[Ledger]:
    """Every rank's ledger, on every rank."""
    if not dist.is_initialized():
        return [ledger]
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, ledger)
    return list(out)
