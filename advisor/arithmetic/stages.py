"""Pipeline stages: which are counted, and which blocks sit on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from advisor.architecture import Architecture, Block
from advisor.job import Job

Stage = Literal["only", "first", "middle", "last"]


def stages(job: Job) -> tuple[Stage, ...]:
    """The pipeline stages to count for ``parallel.pipeline_rank``: for ``max`` the first, one in the middle, and the last."""
    p = job.parallel
    size, rank = p.pipeline or 1, p.pipeline_rank
    if size == 1:
        return ("only",)
    if rank in ("first", 0):
        return ("first",)
    if rank in ("last", size - 1):
        return ("last",)
    if isinstance(rank, int):
        return ("middle",)
    return ("first", "last") if size == 2 else ("first", "middle", "last")


def dealt(job: Job, layers: int) -> tuple[int, ...]:
    """Layers of each chunk, first to last, as ``pipeline_layout`` says or evenly; torchtitan takes embedding and head for a layer each.

    Source: torchtitan distributed/pipeline_parallel.py ``generate_llm_fqn_per_model_part`` (input_weight and output_weight 1; 0.1's generate_split_points too).
    """
    p = job.parallel
    chunks = (p.pipeline or 1) * (p.virtual_stages or 1)
    if p.pipeline_layout:
        return tuple(p.pipeline_layout)
    outer = 1 if job.framework.name == "torchtitan" and chunks > 1 else 0
    share, rest = divmod(layers + 2 * outer, chunks)
    return tuple(max(0, share + (1 if i < rest else 0) - outer * (i in (0, chunks - 1))) for i in range(chunks))


def place(job: Job, where: Stage, layers: Sequence[int]) -> int:
    """The rank of a stage, given the layers of each rank: of those in the middle the fullest, of equal ones the first."""
    size, rank = job.parallel.pipeline or 1, job.parallel.pipeline_rank
    if isinstance(rank, int):
        return min(rank, size - 1)
    if where == "middle":
        return max(range(1, size - 1), key=lambda i: layers[i])
    return 0 if where == "first" else size - 1


def on_stage(arch: Architecture, job: Job, where: Stage) -> tuple[tuple[Block, int], ...]:
    """The text blocks of a pipeline stage. Layers are dealt out evenly unless ``pipeline_layout`` says otherwise."""
    p = job.parallel
    size = p.pipeline or 1
    if size == 1:
        return tuple((b, b.count) for b in arch.blocks)
    layout = dealt(job, arch.layers)
    per = [sum(layout[i::size]) for i in range(size)]  # interleaved: chunk i sits on stage i mod size
    index = place(job, where, per)
    if any(b.places for b in arch.blocks):  # kinds alternate: which layers the stage has decides
        return _standing(arch.blocks, [(sum(layout[:i]), sum(layout[: i + 1])) for i in range(index, len(layout), size)])
    start = sum(per[:index])
    return _slice(arch.blocks, start, start + per[index])


def _standing(blocks: tuple[Block, ...], spans: Sequence[tuple[int, int]]) -> tuple[tuple[Block, int], ...]:
    """The layers of each kind that stand within the spans."""
    found = ((b, sum(start <= place < stop for place in b.places for start, stop in spans)) for b in blocks)
    return tuple((b, n) for b, n in found if n)


def _slice(blocks: tuple[Block, ...], start: int, stop: int) -> tuple[tuple[Block, int], ...]:
    if any(b.places for b in blocks):
        return _standing(blocks, [(start, stop)])
    out: list[tuple[Block, int]] = []
    position = 0
    for block in blocks:  # kinds that follow one another ("first k dense"), in order
        overlap = min(stop, position + block.count) - max(start, position)
        if overlap > 0:
            out.append((block, overlap))
        position += block.count
    return tuple(out)


def on_card(arch: Architecture, shares: tuple[float, ...]) -> tuple[Stage, tuple[tuple[Block, int], ...]]:
    """The fullest card of a naive device map: its place in the model and its blocks. Cards run one after the other."""
    whole = sum(shares) or 1.0
    index = max(range(len(shares)), key=lambda i: shares[i])
    start = round(arch.layers * sum(shares[:index]) / whole)
    stop = round(arch.layers * sum(shares[: index + 1]) / whole)
    place: Stage = "only" if len(shares) == 1 else "first" if index == 0 else "last" if index == len(shares) - 1 else "middle"
    return place, _slice(arch.blocks, start, stop)
