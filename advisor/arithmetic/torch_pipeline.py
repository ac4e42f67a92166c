"""What torch's own pipeline schedules keep beside the micro batch that runs: others in flight, buffers, outputs, what was sent.

Read in torch 2.13, distributed/pipelining: stage.py ``_RecvInfo`` (a buffer a micro batch, received into and kept), ``fwd_cache`` (a stage's outputs until
their backward pass), ``output_chunks`` (the last stage's outputs until the next step); schedules.py ``_PipelineScheduleRuntime._step_microbatches``
(``send_ops`` are waited for at the end of the step, so that interleaving keeps all that was sent), ``PipelineScheduleSingle.step`` (joins the outputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.arithmetic import logits, settings
from advisor.arithmetic import moments as at
from advisor.arithmetic.blocks.block import settled
from advisor.arithmetic.checkpointing import recomputed_layers
from advisor.arithmetic.context import Context
from advisor.arithmetic.fsdp_units import unsharded, unsynced
from advisor.arithmetic.fsdp_whole import one_unit
from advisor.arithmetic.sharding import split
from advisor.arithmetic.stages import dealt, place
from advisor.arithmetic.torch_schedule import Pass, passes
from advisor.ledger import Holding

PASSES = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST, at.BACKWARD_FIRST})
SAVED = frozenset({"activations", "attention", "dequantised"})
STAGE = "torch distributed/pipelining/stage.py"
SCHEDULES = "torch distributed/pipelining/schedules.py"
RETURNS_SINCE = (2, 10)  # torch whose step takes return_outputs; torchtitan asks for none from 0.2.1 (train.py forward_backward_step)


def holdings(ctx: Context, held: Sequence[Holding]) -> Iterator[Holding]:
    """All that a rank of a torch pipeline holds beyond one micro batch."""
    yield from _Rank(ctx, held).holdings()


def returns_outputs(ctx: Context) -> bool:
    """Whether ``step`` hands the last stage's outputs back, so that they are kept and joined: unless it is told not to."""
    return ctx.framework != "torchtitan" or not (ctx.at_least("torch", *RETURNS_SINCE) and ctx.at_least("torchtitan", 0, 2, 1))


class _Rank:
    """The chunks of one rank in numbers: bytes of one micro batch."""

    def __init__(self, ctx: Context, held: Sequence[Holding]) -> None:
        parallel, size = ctx.job.parallel, ctx.pipeline
        layers = dealt(ctx.job, ctx.arch.layers)
        self.ctx, self.chunks = ctx, parallel.virtual_stages or 1
        rank = place(ctx.job, ctx.stage, [sum(layers[i::size]) for i in range(size)])
        self.micro = parallel.microbatches or 1
        last = size * self.chunks - 1
        self.numbers = range(rank, last + 1, size)  # of the stages
        self.last = [number == last for number in self.numbers]
        self.parts = ctx.tensor if ctx.sequence_parallel else 1  # torchtitan parallelize_llama: RowwiseParallel(output_layouts=Shard(1)) gives its local part
        self.each = ctx.tokens * ctx.arch.hidden * settings.stream(ctx) // self.parts  # activations between two stages
        self.whole = sum(h.bytes for h in held if h.part in SAVED and {at.FORWARD, at.LOSS_FORWARD} <= h.moments and h.device == "gpu")
        layers = (*layers, *[0] * (last + 1 - len(layers)))  # a layout of fewer stages than are said
        self.saved = [self.whole * layers[number] // max(1, ctx.layers) for number in self.numbers]
        kept = self.each if _entry(ctx) else 0
        self.entry = [kept if number and layers[number] else 0 for number in self.numbers]  # saved, and the buffer itself
        form = logits.form_of(ctx) if ctx.has_head else ""
        whole = ctx.has_head and ctx.arch.classes is None and form not in ("fused-linear", "chunked") and not ctx.job.framework.keeps_outputs
        self.logits = ctx.tokens * logits.vocabulary(ctx) * logits.width(ctx) if whole else 0
        self.returns = returns_outputs(ctx)
        self.trained = _gradients(ctx, [layers[number] for number in self.numbers], any(self.last))
        self.passes = passes(size, rank, self.chunks, self.micro)

    def in_flight(self, p: Pass) -> int:
        """Saved activations of every chunk and micro batch alive, without what is a buffer anyway."""
        return sum(p.alive(c) * (self.saved[c] - self.entry[c]) for c in range(self.chunks))

    def outputs(self, p: Pass) -> int:
        """Activations that went to the next stage: until their backward pass, or, interleaved, to the end of the step."""
        ended = [p.forwards[c] if self.chunks > 1 else p.forwards[c] - p.backwards[c] for c in range(self.chunks) if not self.last[c]]
        return sum(ended) * self.each

    def gradients(self, p: Pass) -> int:
        """Gradients on their way to the stage before: of the backward pass before this one, or, interleaved, of every one."""
        ended = sum(n for n, number in zip(p.backwards, self.numbers, strict=True) if number)
        return (ended if self.chunks > 1 else min(1, ended)) * self.each

    def accumulated(self, p: Pass, *, ends: bool) -> int:
        """Gradients of the chunks that a micro batch has been through backward; where the pass ends, its own."""
        born = (n > 0 or self.ctx.accumulation > 1 or (ends and c == p.chunk) for c, n in enumerate(p.backwards))
        return sum(size for size, there in zip(self.trained, born, strict=True) if there)

    def kept(self, p: Pass) -> int:
        """Logits of the last stage from forward passes that are over."""
        if not self.logits:
            return 0
        done = p.forwards[-1]
        if self.returns:
            return done * self.logits
        if self.chunks > 1:
            return (done - p.backwards[-1]) * self.logits
        return min(1, done) * self.logits  # the loop's variable, until the next forward pass returns

    def holdings(self) -> Iterator[Holding]:
        """Moment by moment, the pass at which most is held."""
        reduces = self.ctx.strategy == "fsdp2"  # the root's gradients, when every backward pass is over
        where = PASSES if reduces else PASSES | {at.BACKWARD_ROOT}
        for moment in sorted(where & self.ctx.trains):
            yield from self._at(moment)
        yield self._buffer(self._buffered(), (self.ctx.moments & at.AFTER_LOAD) - where)
        yield from self._after(reduces)

    def _stands(self, moment: str, p: Pass) -> bool:
        """Whether a moment of the ledger stands for a pass: the loss's is the last stage's, the root's the one with the embedding."""
        if p.backward != (moment not in (at.FORWARD, at.LOSS_FORWARD)):
            return False
        if moment in (at.LOSS_FORWARD, at.LOSS_BACKWARD) and self.logits:
            return self.last[p.chunk]
        return p.chunk == 0 or moment != at.BACKWARD_ROOT or not self.ctx.has_embedding

    def _at(self, moment: str) -> Iterator[Holding]:
        ends = moment in (at.BACKWARD_FIRST, at.BACKWARD_ROOT)  # of a backward pass, whose activations have gone

        def counted(p: Pass) -> int:
            """What the ledger has: one micro batch through every chunk; what the backward pass has let go is taken off."""
            return self.saved[p.chunk] if ends else self.whole

        def size(p: Pass) -> int:
            return self.in_flight(p) - counted(p) + self.outputs(p) + self.gradients(p) + self.kept(p) + self.accumulated(p, ends=ends)

        p = max((p for p in self.passes if self._stands(moment, p)), key=size, default=None)
        there = frozenset({moment})
        if p is None:
            yield self._buffer(self._buffered(), there)
            return
        more = self.in_flight(p) - counted(p)
        yield self._buffer(self._buffered() + min(0, more), there)  # what one micro batch saves is partly a buffer
        yield Holding(
            "activations", "activations of other micro batches in flight", max(0, more), there, "micro_batches_by_chunk x saved_bytes_by_chunk - counted_bytes",
            {"micro_batches_by_chunk": [p.alive(c) for c in range(self.chunks)], "saved_bytes_by_chunk": self.saved, "counted_bytes": counted(p)},
            f"{SCHEDULES}: micro batches run ahead",
        )  # fmt: skip
        for part, name, size_, source in (
            ("activations", "outputs for the next stage", self.outputs(p), f"{STAGE} fwd_cache; {SCHEDULES} send_ops"),
            ("communication", "gradients for the stage before", self.gradients(p), f"{SCHEDULES} bwd_sends, send_ops"),
        ):
            values = {"tensors": size_ // max(1, self.each), "bytes_each": self.each}
            yield Holding(part, name, size_, there, "tensors x bytes_each", values, source)
        yield self._logits(self.kept(p), there)
        if moment == at.BACKWARD_ROOT:  # counted there as a whole
            return
        size_, whole = self.accumulated(p, ends=ends), self.ctx.strategy == "fsdp2"
        wide = max(self.ctx.reduce, unsharded(self.ctx)) if whole else self.ctx.gradient
        yield Holding(
            "gradients", "whole gradients kept over micro batches" if whole else "gradients", size_, there, "elements x bytes_each",
            {"elements": size_ // wide, "bytes_each": wide}, f"{STAGE} backward_maybe_with_nosync: chunks that have run backward; reduced once, after the last",
            need="avoidable" if whole else "needed",
        )  # fmt: skip

    def _buffered(self) -> int:
        received = sum(number > 0 for number in self.numbers) + sum(not last for last in self.last)
        return self.micro * received * self.each

    def _buffer(self, size: int, moments: frozenset[str]) -> Holding:
        return Holding(
            "communication", "buffers that stages receive into", size, moments,
            "micro_batches x (stages_before + stages_after) x tokens x hidden x bytes / sequence_parts",
            {"micro_batches": self.micro, "tokens": self.ctx.tokens, "hidden": self.ctx.arch.hidden, "sequence_parts": self.parts},
            f"{STAGE} _RecvInfo: made once, one for each micro batch",
            layout="bucket",
        )  # fmt: skip

    def _logits(self, size: int, moments: frozenset[str]) -> Holding:
        return Holding(
            "logits", "logits that the last stage keeps", size, moments, "micro_batches_done x logits_bytes", {"logits_bytes": self.logits},
            f"{STAGE} output_chunks; {SCHEDULES}: output", need="avoidable",
        )  # fmt: skip

    def _after(self, reduces: bool) -> Iterator[Holding]:
        """When all backward passes are over: the outputs kept, and joined to one."""
        ctx = self.ctx
        if not self.returns:
            yield self._logits(self.logits if self.chunks == 1 else 0, ctx.trains & ({at.BACKWARD_ROOT} if reduces else set()))
            return
        every = self.micro * self.logits
        yield self._logits(every, ctx.trains & ({at.STEP, at.BACKWARD_ROOT} if reduces else {at.STEP}))
        gone = 0  # by then, of what is counted at the moment: whole gradients, and the reduction's input
        if reduces and unsynced(ctx):
            gone = ctx.counts.learned * max(ctx.reduce, unsharded(ctx)) - split(ctx.counts.learned, ctx.shard) * ctx.gradient
            gone += ctx.counts.outer.trained * ctx.reduce
        yield Holding(
            "logits", "the last stage's outputs, joined", max(0, every - gone), ctx.trains & {at.BACKWARD_ROOT}, "micro_batches x logits_bytes - reduced_bytes",
            {"micro_batches": self.micro, "logits_bytes": self.logits, "reduced_bytes": gone}, f"{SCHEDULES} _merge_outputs", need="avoidable",
        )  # fmt: skip


def _gradients(ctx: Context, layers: Sequence[int], last: bool) -> list[int]:
    """Bytes of each chunk's gradients where micro batches add to them; what is outside of the blocks counts with the first chunk, or the last one."""
    if ctx.strategy == "fsdp2":
        wide = max(ctx.reduce, unsharded(ctx)) if unsynced(ctx) and not one_unit(ctx) else 0
        each = (wide, wide)
    else:
        each = (ctx.gradient, ctx.adapter) if ctx.gradients_kept else (0, 0)
    inner = sum(u.layers * (u.trained * each[0] + u.adapters * each[1]) for u in ctx.counts.blocks)
    outer = ctx.counts.trained * each[0] + ctx.counts.adapters * each[1] - inner
    found = [inner * n // max(1, ctx.layers) for n in layers]
    found[-1 if last else 0] += outer
    return found


def _entry(ctx: Context) -> bool:
    """Whether a stage's first block keeps its input as it was received."""
    selective = ctx.job.activations.selective
    if recomputed_layers(ctx, ctx.layers) == ctx.layers or (ctx.checkpointing == "selective" and selective is not None and selective.policy == "op"):
        return True
    return bool(ctx.blocks) and settled(ctx.blocks[0][0], ctx.arch.hidden, settings.of(ctx, ctx.blocks[0][0])).entry_saved
