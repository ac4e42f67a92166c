"""The tensors that a run can allocate in one piece, by kind, with their sizes."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from advisor.architecture import Architecture
from advisor.architecture.shape import Block
from advisor.run import Run
from advisor.units import MIB

WHOLE = 0.75  # of the card in one tensor: weights, and what it is computed from, do not fit beside it
WIDTHS = (("bf16", 2), ("fp32", 4))  # fp16 is as wide as bf16
SEGMENT_FROM = 10 * MIB


class Candidate(Struct, frozen=True):
    """A tensor that the run can allocate in one piece: ``kind`` groups them for marks."""

    kind: str
    name: str
    size_bytes: int
    formula: str


def rounded(size_bytes: int) -> int:
    """What the caching allocator reserves for a tensor of this size when it needs a new segment."""
    if size_bytes < SEGMENT_FROM:
        return size_bytes
    return -(-size_bytes // (2 * MIB)) * 2 * MIB


def candidates(run: Run, shape: Architecture | None, *, evaluating: bool = False) -> Iterator[Candidate]:
    """Every tensor of the run, as sizes; ``evaluating``: with the evaluation batch instead of the micro batch."""
    p = run.job.parallel
    yield from _buckets(run)
    if shape is None:
        return
    yield from _weights(run, shape)
    batch, seq = run.job.batch.micro_batch, run.job.batch.seq_len
    if evaluating and run.job.eval is not None and run.job.eval.micro_batch is not None:
        batch = run.job.eval.micro_batch
    if batch is None or seq is None:
        return
    tensor, context = p.tensor or 1, p.context or 1
    yield from _logits(run, shape, batch, seq)
    tokens = batch * seq // context
    if run.job.objective in ("dpo", "kto", "orpo"):  # chosen and rejected pass together
        for dtype, width in WIDTHS:
            yield Candidate(
                "logits", f"logits of both answers in {dtype}", 2 * tokens * shape.vocab * width, f"2 x {tokens:,} tokens x vocab {shape.vocab:,} x {width}"
            )
    for block in shape.blocks:
        heads = max(1, block.heads // tensor)
        if block.kind != "mixer":
            for dtype, width in WIDTHS:
                yield Candidate(
                    "attention",
                    f"attention scores in {dtype}",
                    batch * heads * seq * seq * width,
                    f"micro_batch {batch} x heads {heads} x seq_len {seq:,}² x {width}",
                )
        if block.mlp_width:
            for dtype, width in WIDTHS:
                yield Candidate(
                    "mlp",
                    f"an MLP projection's output in {dtype}",
                    tokens * block.mlp_width // tensor * width,
                    f"{tokens:,} tokens x MLP width {block.mlp_width // tensor:,} x {width}",
                )
    for width in (1, 2, 4):
        yield Candidate("mask", "a seq_len x seq_len mask", batch * seq * seq * width, f"micro_batch {batch} x seq_len {seq:,}² x {width}")
    for dtype, width in WIDTHS:
        yield Candidate("hidden", f"hidden states in {dtype}", tokens * shape.hidden * width, f"{tokens:,} tokens x hidden {shape.hidden:,} x {width}")


def _logits(run: Run, shape: Architecture, batch: int, seq: int) -> Iterator[Candidate]:
    """Of the training step and, where there is one, of the pass that only takes log-probabilities; under tensor parallelism a rank's part of the vocabulary."""
    tensor, local = run.job.parallel.tensor or 1, seq // (run.job.parallel.context or 1)
    batches = {batch: "micro_batch"}
    if run.job.rollout is not None and run.job.rollout.logprob_micro_batch is not None:
        batches.setdefault(run.job.rollout.logprob_micro_batch, "log-prob batch")
    for rows, named in batches.items():
        for vocab, part in ((shape.vocab, ""), (shape.vocab // tensor, f" / {tensor} ranks"))[: 2 if tensor > 1 else 1]:
            for tokens, shown in ((local, "seq_len"), (local - 1, "(seq_len - 1)")):
                for dtype, width in WIDTHS:
                    formula = f"{named} {rows:,} x {shown} {tokens:,} x vocab {shape.vocab:,}{part} x {width}"
                    yield Candidate("logits", f"logits in {dtype}", rows * tokens * vocab * width, formula)


def _buckets(run: Run) -> Iterator[Candidate]:
    p = run.job.parallel
    sizes = {"reduce bucket": p.bucket_elements, "all-gather bucket": p.allgather_bucket_elements, "prefetch bucket": p.prefetch_elements}
    for name, elements in sizes.items():
        if elements:
            for dtype, width in WIDTHS:
                yield Candidate("bucket", f"the {name} in {dtype}", elements * width, f"{elements:,} elements x {width}")


def _weights(run: Run, shape: Architecture) -> Iterator[Candidate]:
    p = run.job.parallel
    shard = max(1, p.shard or 1)
    tensor = max(1, p.tensor or 1)
    for tensor_of in shape.outer:
        if tensor_of.role in ("embedding", "head"):
            for dtype, width in WIDTHS:
                yield Candidate(
                    "vocabulary-weight", f"the {tensor_of.name} matrix in {dtype}", tensor_of.elements // tensor * width, f"{_sides(tensor_of.shape)} x {width}"
                )
    for block in shape.blocks:
        for one in block.tensors:
            for dtype, width in (("8 bit", 1), *WIDTHS):
                yield Candidate("weight", f"one {one.name} weight in {dtype}", one.elements // tensor * width, f"{_sides(one.shape)} x {width}")
        yield from _stacks(block)
        for dtype, width in WIDTHS:
            size = block.parameters // tensor * width
            yield Candidate("unit", f"one block's gathered parameters in {dtype}", size, f"block of {block.parameters:,} parameters x {width}")
    total = shape.parameters // tensor
    for dtype, width in WIDTHS:
        yield Candidate("flat-whole", f"all parameters in one {dtype} buffer", total * width, f"{total:,} parameters x {width}")
        if shard > 1:
            yield Candidate(
                "flat-shard", f"one rank's share of all parameters in {dtype}", total // shard * width, f"{total:,} parameters / {shard} ranks x {width}"
            )
    if p.strategy == "zero3":
        yield Candidate("flat-group", "one optimizer group of 1e9 elements in fp32", 4_000_000_000, "sub_group_size 1,000,000,000 x 4")


def _stacks(block: Block) -> Iterator[Candidate]:
    """Experts of a layer held as one tensor: each projection, and gate and up together (transformers 5, fused experts)."""
    if block.experts is None:
        return
    for one in block.tensors:
        if one.role == "expert":
            for dtype, width in WIDTHS:
                yield Candidate(
                    "expert-stack", f"all experts' {one.name} in {dtype}", one.total * width, f"{one.times} experts x {_sides(one.shape)} x {width}"
                )
    wide = [one for one in block.tensors if one.role == "expert" and one.times > 1]
    if len(wide) >= 3:
        for dtype, width in WIDTHS:
            both = 2 * wide[0].total * width
            yield Candidate("expert-stack", f"all experts' gate and up in {dtype}", both, f"{wide[0].times} experts x 2 x {_sides(wide[0].shape)} x {width}")


def _sides(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{side:,}" for side in shape)
