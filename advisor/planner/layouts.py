"""Parallel layouts for a given number of GPUs: tensor x context x pipeline x data, each re-estimated in memory and time.

The GPUs and the samples of a step stay; micro-batches in flight follow. Only legal layouts are tried: heads divide over tensor ranks, tensor groups
stay inside a node, stages have layers, data-parallel ranks divide the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from advisor.arithmetic import CannotEstimate, estimate
from advisor.job import JobError
from advisor.run import Run
from advisor.speed import step_time
from advisor.techniques.conditions import MEGATRON

LEAST_TOKENS_OF_A_RING = 4096  # a rank with fewer tokens than this waits for its ring on every link of the catalogue
MOST_PIPELINE = 64
MOST_CONTEXT = 64
LAYOUTS = MEGATRON | {"torchtitan", "custom"}  # frameworks that have all four


@dataclass(frozen=True)
class Layout:
    """One layout: bytes of one card without the allocator's cache, seconds a step (``relative`` where the card is not known)."""

    tensor: int
    context: int
    pipeline: int
    data: int
    checkpointing: str
    used_bytes: int
    seconds: float
    fits: bool | None
    run: Run


def layouts(run: Run, *, capacity_bytes: int | None = None, most: int = 400) -> list[Layout]:
    """Fitting layouts first, fastest first; then the others, smallest first. Empty where the framework has no such layouts.

    At most ``most`` estimates (about two milliseconds each).
    """
    if run.job.framework.name is not None and run.job.framework.name not in LAYOUTS:
        return []
    usable = capacity_bytes if capacity_bytes is not None else run.usable[0] if run.usable is not None else None
    found: list[Layout] = []
    for number, (shape, changed) in enumerate(_legal(run)):
        if number >= most:
            break
        try:
            ledger = estimate(changed)
        except CannotEstimate:
            return []
        used = ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")
        fits = None if usable is None else used <= usable
        found.append(Layout(*shape, changed.job.activations.checkpointing or "none", used, step_time(changed).expected, fits, changed))
    return sorted(found, key=lambda x: (x.fits is False, x.seconds if x.fits is not False else x.used_bytes))


def _legal(run: Run) -> Iterator[tuple[tuple[int, int, int, int], Run]]:
    """Layouts with less recomputation and less cutting first."""
    job, architecture = run.job, run.architecture
    p, b = job.parallel, job.batch
    if architecture is None or b.micro_batch is None or b.seq_len is None:
        return
    world, per_node = run.world, job.hardware.gpus_per_node or 1
    context_now, passes = p.context or 1, (b.gradient_accumulation or 1) * ((p.microbatches or 1) if (p.pipeline or 1) > 1 else 1)
    samples = b.micro_batch * passes * (p.shard or 1) * (p.replicate or 1) // context_now
    heads = min((block.heads for block in architecture.blocks if block.heads), default=1)
    strategy = "fsdp2" if job.framework.name == "torchtitan" else p.strategy if p.strategy in ("fsdp2", "megatron-fsdp") else "megatron-distributed"
    kept = job.activations.checkpointing or "none"
    for checkpointing in dict.fromkeys((kept, "full")):
        for pipeline in _powers(min(MOST_PIPELINE, architecture.layers)):
            for tensor in _powers(min(per_node, heads)):
                for context in _powers(min(MOST_CONTEXT, max(1, b.seq_len // LEAST_TOKENS_OF_A_RING))):
                    cut = tensor * pipeline * context
                    if world % cut or heads % tensor or samples % (b.micro_batch * (world // cut)):
                        continue
                    data = world // cut
                    in_flight = samples // (b.micro_batch * data)
                    if pipeline > 1 and in_flight < pipeline:
                        continue  # fewer micro-batches than stages: most ranks would wait
                    parallel: dict[str, Any] = {
                        "strategy": strategy, "shard": data * context, "replicate": 1, "tensor": tensor, "sequence": tensor > 1, "context": context,
                        **({"context_kind": "ring"} if context > 1 else {}), "pipeline": pipeline, "microbatches": in_flight if pipeline > 1 else None,
                        "pipeline_rank": "max" if pipeline > 1 else None, "pipeline_layout": None,
                        **({"virtual_stages": 1} if (p.virtual_stages or 1) > 1 else {}),
                    }  # fmt: skip
                    batch = {"gradient_accumulation": 1 if pipeline > 1 else in_flight}
                    try:
                        yield (tensor, context, pipeline, data), run.but(parallel=parallel, batch=batch, activations={"checkpointing": checkpointing})
                    except JobError:
                        continue


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... up to ``most``."""
    return [1 << k for k in range(max(1, most).bit_length())]
