"""Parallel layouts for a given number of GPUs: tensor x context x pipeline x data, and experts over these, each re-estimated in memory and time.

The GPUs and the samples of a step stay; micro-batches in flight follow. Only legal layouts are tried: heads divide over tensor ranks, tensor groups
stay inside a node, stages have layers, data-parallel ranks divide the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from advisor.arithmetic import CannotEstimate, estimate
from advisor.job import JobError
from advisor.run import Run
from advisor.speed import step_time
from advisor.techniques.conditions import MEGATRON

LEAST_TOKENS_OF_A_RING = 4096  # a rank with fewer tokens than this waits for its ring on every link of the catalogue
MOST_PIPELINE = 64
MOST_CONTEXT = 64
BUBBLE = 0.05  # of the time of a step, from which a stage is cut into pieces that take turns
SAME = 0.03  # layouts whose times differ by less are told apart by how much they cut
LAYOUTS = MEGATRON | {"torchtitan", "custom"}  # frameworks that have all four


class Layout(Struct, frozen=True):
    """One layout: bytes of one card without the allocator's cache, seconds a step (``relative`` where the card is not known)."""

    tensor: int
    context: int
    pipeline: int
    data: int
    expert: int
    checkpointing: str
    used_bytes: int
    seconds: float
    fits: bool | None
    run: Run
    settings: Mapping[str, Mapping[str, Any]]  # what makes it of any run of the job

    @property
    def cuts(self) -> int:
        """Into how many pieces the model and its sequences are cut: of two layouts that take as long, the one with fewer is easier to run."""
        return self.tensor * self.context * self.pipeline


def layouts(run: Run, *, capacity_bytes: int | None = None, most: int = 400) -> list[Layout]:
    """Fitting layouts first, fastest first; then the others, smallest first. Empty where the framework has no such layouts.

    At most ``most`` estimates (about two milliseconds each).
    """
    if run.job.framework.name is not None and run.job.framework.name not in LAYOUTS:
        return []
    usable = capacity_bytes if capacity_bytes is not None else run.usable[0] if run.usable is not None else None
    found: list[Layout] = []
    for number, (shape, settings, changed) in enumerate(_legal(run)):
        if number >= most:
            break
        try:
            ledger = estimate(changed)
        except CannotEstimate:
            return []
        used = ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")
        fits = None if usable is None else used <= usable
        found.append(Layout(*shape, changed.job.activations.checkpointing or "none", used, step_time(changed).expected, fits, changed, settings))
    best = min((x.seconds for x in found if x.fits is not False), default=0.0)
    return sorted(
        found,
        key=lambda x: (
            x.fits is False,
            *((int((x.seconds / max(best, 1e-30) - 1) / SAME), x.cuts, x.seconds) if x.fits is not False else (x.used_bytes, 0, 0.0)),
        ),
    )


def _legal(run: Run) -> Iterator[tuple[tuple[int, int, int, int, int], Mapping[str, Mapping[str, Any]], Run]]:
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
                        "virtual_stages": _virtual(architecture.layers, pipeline, in_flight) if job.framework.name in MEGATRON else 1,
                    }  # fmt: skip
                    batch = {"gradient_accumulation": 1 if pipeline > 1 else in_flight}
                    for expert in _experts(run, data * context * tensor, per_node):
                        divided = {**parallel, **({"expert": expert} if expert > 1 or (p.expert or 1) > 1 else {})}
                        settings = {"parallel": divided, "batch": batch, "activations": {"checkpointing": checkpointing}}
                        try:
                            changed = run.but(**settings)
                        except JobError:
                            continue
                        yield (tensor, context, pipeline, data, expert), settings, changed


def _virtual(layers: int, pipeline: int, in_flight: int) -> int:
    """Pieces of a stage that take turns (interleaved 1F1B): two where the bubble is worth it and the layers come out even, else one."""
    if pipeline == 1 or (pipeline - 1) / in_flight < BUBBLE or in_flight % pipeline:
        return 1
    return max((v for v in (2, 4) if layers % (pipeline * v) == 0), default=1)


def _experts(run: Run, ranks: int, per_node: int) -> list[int]:
    """Over how many ranks experts are spread: not at all, as now, or over a node and over two."""
    architecture = run.architecture
    number = max((b.experts.number for b in architecture.blocks if b.experts), default=0) if architecture is not None else 0
    if not number:
        return [1]
    wanted = {1, run.job.parallel.expert or 1, min(per_node, number), min(2 * per_node, number)}
    return sorted(n for n in wanted if ranks % n == 0 and number % n == 0) or [1]


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... up to ``most``."""
    return [1 << k for k in range(max(1, most).bit_length())]
