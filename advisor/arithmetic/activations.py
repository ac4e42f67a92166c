"""Activations: what autograd keeps of the blocks, tensor by tensor, and what a block needs for the moment it runs."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.arithmetic import halves, hearing, settings, vision
from advisor.arithmetic import moments as at
from advisor.arithmetic.blocks.altup import streams
from advisor.arithmetic.blocks.block import settled
from advisor.arithmetic.blocks.cached import stranded
from advisor.arithmetic.blocks.tape import Counted, Size, Step
from advisor.arithmetic.checkpointing import checkpoints, kept_at_rest, offloaded, recomputed_layers, reentrant
from advisor.arithmetic.context import Context
from advisor.arithmetic.fsdp_units import unsharded
from advisor.arithmetic.fsdp_whole import one_unit
from advisor.arithmetic.parameters import ADAPTED
from advisor.ledger import Holding

UNTIL_LOSS = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD})
LAST = frozenset({at.BACKWARD_LAST})
RUNNING = frozenset({at.BACKWARD_LAST, at.BACKWARD_FIRST})  # one block runs backward
BEFORE_LOSS = frozenset({at.FORWARD, at.LOSS_FORWARD})
FORWARD_ONLY = frozenset({at.FORWARD})
FORMULA = "layers x (tokens x bytes a token + tokens x keys x bytes a pair + fixed bytes)"
PLAIN = "layers x tokens x bytes a token"
DTYPES: dict[int | None, str] = {1: "int8", 2: "bf16", 4: "fp32"}
LASTING = "bitsandbytes < 0.43.2 MatMul4Bit keeps its input; litgpt's loop names the old loss"
SOURCE = "autograd's saved tensors of the modelling code, operation by operation (arithmetic/blocks)"
REENTRANT = "torch.utils.checkpoint.CheckpointFunction.backward holds the outputs it recomputed"
AGAIN = "torch.utils.checkpoint: the block runs forward again, keeping all, before it runs backward"
UNASKED = "torch autograd materialises the gradient of an output that nobody reads; modeling_{bloom,mpt,gpt_neo}: a block returns its attention weights"
STRANDED = "reserved over alive"  # of what comes and goes in a block's forward pass: read by the allocator's part
RUNNING_BYTES = "bytes of the running block"  # at its largest in backward: read by the allocator's part
EMBEDDING_NORMS = frozenset({"LayerNorm", "layernorm_embedding", "word_embeddings_layernorm"})
UNSHARDED = frozenset({"none", "ddp"})
_RUNNING: dict[tuple[int, int, int, int, int, bool], tuple[Step, Counted, tuple[Holding, ...]]] = {}
_MOST_KNOWN = 2048


def holdings(ctx: Context) -> Iterator[Holding]:
    """Saved activations, checkpoints, and the temporaries of the block that runs, for the text blocks of this rank."""
    yield from vision.holdings(ctx)
    yield from halves.holdings(ctx)
    yield from hearing.holdings(ctx)
    yield from _own_embeddings(ctx)
    yield from _streams(ctx)
    yield from _normed_embeddings(ctx)
    if not ctx.blocks:
        return
    put = _Put(ctx)
    here = [(block, layers) for block, layers in ctx.blocks if block.cross or not hearing.hears(ctx)]
    counted = [(settled(block, ctx.arch.hidden, s), n) for block, layers in here for s, n in settings.parts(ctx, block, layers)]
    if not counted:
        return
    last, step = put.heaviest(counted)
    inside = ctx.checkpointing == "full"
    others = 0
    for c, layers in counted:
        recomputed = recomputed_layers(ctx, layers)
        if recomputed:
            yield from checkpoints(ctx, c, recomputed)
        whole = layers - recomputed
        if whole:
            kept, _ = kept_at_rest(ctx, c)
            away, kept = offloaded(ctx, kept)
            for s in away:
                yield replace(put.holding(s.name, s.size, whole, UNTIL_LOSS | LAST, s.element), device="host")
            each = 0
            for s in kept:
                held = put.holding(s.name, s.size, whole, UNTIL_LOSS, s.element)
                each += held.bytes // whole
                yield held
            others += each * (whole - 1 if c is last and not recomputed else whole)
            if c.lasting[0] and ctx.source == "litgpt":
                yield put.holding("inputs of 4-bit layers from the step before", c.lasting, layers, BEFORE_LOSS, None, LASTING)
    if others:
        yield Holding("activations", "kept by the other blocks", others, LAST, "bytes of all blocks but the running one", {"bytes": others}, SOURCE)
    again = put.recomputed(counted) if inside else None
    if again is not None:
        yield from _recomputing(put, again)
    else:
        yield from _known_running(put, last, step, with_input=not inside)
    if inside and reentrant(ctx):
        yield put.holding("recomputed output of the running block", last.output, 1, RUNNING, None, REENTRANT)
        if settings.returns_weights(ctx):
            pair = float(max(block.heads for block, _ in ctx.blocks) * ctx.compute)
            yield put.holding("zeros as the gradient of the attention weights that the block returns", (0.0, pair, 0.0, 0.0), 1, RUNNING, None, UNASKED)
    first = max((c for c, _ in counted), key=lambda c: put.bytes(c.total)) if inside and len(counted) > 1 else last
    yield from _forward(put, first, round(put.largest), kept=not inside)


def _own_embeddings(ctx: Context) -> Iterator[Holding]:
    """Gemma 3n's and 4's embeddings of each layer's own: a projection of the embedded tokens, normed, and its sum with a table's, which all layers read.

    Kept: the projection's input, in fp32 what the norm reads and, where it trains, what it gives, and the sum (modeling_gemma4
    project_per_layer_inputs).
    """
    width = next((t.shape[0] for t in ctx.arch.outer if t.name == "per_layer_model_projection"), 0)
    if not width or not ctx.has_embedding or ctx.source != "huggingface":
        return
    trained = ctx.method not in ADAPTED
    each = width * (4 + (4 if trained else 0) + ctx.compute) + (ctx.arch.hidden * ctx.compute if trained else 0)
    values = {"tokens": ctx.tokens, "bytes a token": each}
    yield Holding("activations", "embeddings of each layer's own", ctx.tokens * each, UNTIL_LOSS | RUNNING, "tokens x bytes a token", values, SOURCE)


def _streams(ctx: Context) -> Iterator[Holding]:
    """AltUp's streams outside the layers (modeling_gemma3n Gemma3nTextModel.forward): each but the first is a projection, brought to the first's size.

    Kept of each: the projection, which its own size is taken of, and its product with the first's, which the quotient reads. Before the layers the
    embedded tokens, and after them what the last layer gives, are kept too.
    """
    number = max((streams(block) for block, _ in ctx.blocks), default=1)
    if number == 1 or ctx.source != "huggingface":
        return
    one = ctx.arch.hidden * ctx.compute
    for name, here, kept, moments in (
        ("streams before the layers", ctx.has_embedding, 1 + 2 * (number - 1), UNTIL_LOSS | RUNNING),
        ("streams after the layers", ctx.has_head, number + 2 * (number - 1), UNTIL_LOSS),
    ):
        if here:
            values = {"tokens": ctx.tokens, "bytes a token": kept * one}
            yield Holding("activations", name, ctx.tokens * kept * one, moments, "tokens x bytes a token", values, SOURCE)


def _normed_embeddings(ctx: Context) -> Iterator[Holding]:
    """Embeddings that pass a layer norm before the layers (BERT's, BART's, BLOOM's): what it reads, and a mask of the dropout behind it.

    Frozen ones that nobody asks gradients of keep nothing; transformers asks for them where adapters are trained with checkpointing
    (``enable_input_require_grads``).
    """
    norms = sum(t.name in EMBEDDING_NORMS for t in ctx.arch.outer)
    if not norms or not ctx.has_embedding or ctx.source != "huggingface" or (ctx.method in ADAPTED and ctx.checkpointing != "full"):
        return
    halves = 2 if ctx.arch.encoder_decoder else 1
    masks = 1 if ctx.arch.hidden_dropout and "word_embeddings_layernorm" not in {t.name for t in ctx.arch.outer} else 0
    each = halves * ctx.arch.hidden * ((ctx.weight if ctx.autocast else ctx.compute) + masks)
    values = {"tokens": ctx.tokens, "bytes a token": each}
    yield Holding("activations", "embeddings before their norm", ctx.tokens * each, UNTIL_LOSS | RUNNING, "tokens x bytes a token", values, SOURCE)


class _Put:
    """The numbers of a run that turn a size per token into a holding."""

    __slots__ = ("born", "fresh", "keys", "largest", "pairs", "tokens")

    def __init__(self, ctx: Context) -> None:
        self.tokens, self.keys = ctx.tokens, ctx.seq_len
        self.pairs = ctx.tokens * ctx.seq_len
        here = ctx.strategy in UNSHARDED and not ctx.is_megatron
        each = ctx.adapter if ctx.method in ADAPTED else ctx.gradient
        stays = here and not ctx.gradients_kept and not ctx.job.optimizer.in_backward
        if ctx.strategy == "fsdp2" and not one_unit(ctx):  # whole until the unit reduces them, in the dtype of what was gathered
            self.born = unsharded(ctx) if ctx.method not in ADAPTED or ctx.job.precision.mixed == "fsdp" else ctx.adapter
            if ctx.job.activations.compile:
                self.born = 0  # a compiled backward returns them all at once, in an order of the compiler's own: counted whole, with the block's state
        else:
            self.born = each if stays else 0  # bytes of a weight-gradient element that stays once born in the running block
        self.fresh = each if here and not stays else 0  # bytes of one that is added to a buffer and goes
        self.largest = 0.0  # bytes of the heaviest block at its largest

    def bytes(self, size: Size) -> int:
        """Bytes of a size in this run."""
        return round(size[0] * self.tokens + size[1] * self.pairs + size[2] + size[3])

    def holding(self, name: str, size: Size, layers: int, moments: frozenset[str], element: int | None, source: str = SOURCE) -> Holding:
        """A holding of so many layers."""
        each = round(size[0] * self.tokens + size[1] * self.pairs + size[2] + size[3])
        part = "activations"
        if size[1]:
            part = "attention"
            values = {"layers": layers, "tokens": self.tokens, "bytes a token": size[0], "keys": self.keys, "bytes a pair": size[1]}
        elif size[2] or size[3]:
            part = "activations" if size[0] or size[2] else "dequantised"
            values = {"layers": layers, "tokens": self.tokens, "bytes a token": size[0], "fixed bytes": size[2] + size[3]}
        else:
            values = {"layers": layers, "tokens": self.tokens, "bytes a token": size[0]}
            return Holding("activations", name, layers * each, moments, PLAIN, values, source, DTYPES.get(element))
        return Holding(part, name, layers * each, moments, FORMULA, values, source, DTYPES.get(element))

    def heaviest(self, counted: list[tuple[Counted, int]]) -> tuple[Counted, Step]:
        """The kind of block whose backward pass needs most, and the step at which it does."""
        tokens, pairs, born, fresh = self.tokens, self.pairs, self.born, self.fresh
        best, found = -1.0, (counted[0][0], counted[0][0].backward[0])
        for c, _ in counted:
            for s in c.backward:
                a, b = s.saved, s.live
                size = (a[0] + b[0]) * tokens + (a[1] + b[1]) * pairs + a[2] + b[2] + a[3] + b[3] + s.born * born + s.fresh * fresh
                if size > best:
                    best, found = size, (c, s)
        self.largest = best
        return found

    def recomputed(self, counted: list[tuple[Counted, int]]) -> Size | None:
        """The largest moment of the second forward pass of a checkpointed block, where it needs more than any backward pass."""
        found: Size | None = None
        for c, _ in counted:
            for size in c.again:
                if self.bytes(size) > self.largest:
                    self.largest, found = self.bytes(size), size
        return found


def _recomputing(put: _Put, size: Size) -> Iterator[Holding]:
    """A checkpointed block that is run again: what it keeps by then, what it needs for the moment, and the gradients that wait."""
    yield put.holding("recomputed tensors of the running block, its temporaries and gradients", (size[0], size[1], size[2], 0.0), 1, RUNNING, None, AGAIN)
    if size[3]:
        yield put.holding("dequantised weight in the recomputed forward", (0.0, 0.0, 0.0, size[3]), 1, RUNNING, None, AGAIN)


def _known_running(put: _Put, c: Counted, step: Step, *, with_input: bool) -> tuple[Holding, ...]:
    """:func:`_running`, remembered: a plan changes optimizer, layout or loss far oftener than the tokens of a block."""
    key = (id(step), put.tokens, put.keys, put.born, put.fresh, with_input)
    known = _RUNNING.get(key)
    if known is not None and known[0] is step and known[1] is c:
        return known[2]
    if len(_RUNNING) >= _MOST_KNOWN:
        _RUNNING.clear()
    found = tuple(_running(put, c, step, with_input=with_input))
    _RUNNING[key] = (step, c, found)
    return found


def _running(put: _Put, c: Counted, step: Step, *, with_input: bool) -> Iterator[Holding]:
    """The block in backward: what it still keeps, what lives for the moment, and the weight gradients it has made."""
    if with_input and c.entry_saved:
        yield put.holding("input of the running block", c.input, 1, RUNNING, None)
    for i in step.kept:
        s = c.saved[i]
        yield put.holding(s.running, s.size, 1, RUNNING, s.element)
    live = step.live
    if live[0] or live[1] or live[2]:
        yield put.holding(step.label, (live[0], live[1], live[2], 0.0), 1, RUNNING, None)
    if live[3]:
        yield put.holding("dequantised weight in backward", (0.0, 0.0, 0.0, live[3]), 1, RUNNING, None)
    if put.born and step.born:
        values = {"elements": round(step.born), "bytes": put.born}
        yield Holding("gradients", "weight gradients of the running block so far", round(step.born) * put.born, RUNNING, "elements x bytes", values, SOURCE)
    if put.fresh and step.fresh:
        values = {"elements": round(step.fresh), "bytes": put.fresh}
        yield Holding("gradients", "a weight gradient before it is added", round(step.fresh) * put.fresh, RUNNING, "elements x bytes", values, SOURCE)


def _forward(put: _Put, c: Counted, running: int, *, kept: bool) -> Iterator[Holding]:
    """What a block's forward pass needs beside what stays of it."""
    size = max(c.forward if kept else c.bare, key=put.bytes)
    if put.bytes(size) <= 0:
        return
    temporaries = put.holding("temporaries of a block's forward", (size[0], size[1], size[2], 0.0), 1, FORWARD_ONLY, None)
    if kept:
        yield temporaries
    else:
        t, values = temporaries, {**temporaries.values, STRANDED: stranded(c), RUNNING_BYTES: running}
        yield Holding(t.part, t.name, t.bytes, t.moments, t.formula, values, t.source, t.dtype)
    if size[3]:
        yield put.holding("dequantised weight in forward", (0.0, 0.0, 0.0, size[3]), 1, FORWARD_ONLY, None)
