"""Several ranks: how the model is divided, and how their ledgers become one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from advisor.job import Job
from advisor.ledger import Ledger
from advisor.measurement.watching import configured
from advisor.simulation.request import CannotProbe
from advisor.units import show


def begin(device: str) -> int:
    """Join the group that torchrun has set up; returns this rank (0 where there is none)."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return 0
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return dist.get_rank()


def divider(job: Job) -> Callable[[torch.nn.Module], torch.nn.Module] | None:
    """How the job's strategy divides a model over the ranks that run; ``None``: one rank.

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
    if parallel.strategy == "ddp":
        view = bool(parallel.gradient_as_bucket_view)
        return lambda model: torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
    if parallel.strategy == "fsdp2":
        return lambda model: _fully_shard(model, job)
    raise CannotProbe(f"several ranks are measured with ddp and fsdp2; {parallel.strategy} needs its own framework: watch that run with advisor.watch")


def _fully_shard(model: torch.nn.Module, job: Job) -> torch.nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from advisor.simulation.quantising import DTYPES

    options: dict[str, Any] = {"reshard_after_forward": job.parallel.reshard_after_forward is not False}
    if job.precision.mixed == "fsdp":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=DTYPES[job.precision.compute or "bf16"], reduce_dtype=DTYPES[job.precision.reduce or "fp32"])
    for _, block in configured.blocks(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def merged(ledgers: Sequence[Ledger]) -> Ledger:
    """The ledger of the largest rank, with the mean and the spread of all said beside it."""
    peaks = [ledger.peak().bytes for ledger in ledgers]
    largest = ledgers[peaks.index(max(peaks))]
    if len(ledgers) == 1:
        return largest
    mean = sum(peaks) // len(peaks)
    says = f"{len(peaks)} ranks: largest {show(max(peaks))} (rank {peaks.index(max(peaks))}), mean {show(mean)}, spread {show(max(peaks) - min(peaks))}"
    return replace(largest, notes=(*largest.notes, says), _cache={})


def gathered(ledger: Ledger) -> list[Ledger]:
    """Every rank's ledger, on every rank."""
    if not dist.is_initialized():
        return [ledger]
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, replace(ledger, _cache={}))
    return list(out)
