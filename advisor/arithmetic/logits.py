"""Logits and loss: the tensors of size tokens x vocabulary, or the chunks that stand in for them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.arithmetic import colossal, pipe_outputs, traits, unsloth_loss
from advisor.arithmetic import moments as at
from advisor.arithmetic.context import ROLLOUT_OBJECTIVES, Context
from advisor.arithmetic.fused_linear import chunked, fused_linear
from advisor.arithmetic.losses import LOSS_FUNCTION_SINCE, OWN_LOSS, RAW_REMOTE, SCALED, Loss, materialised, own, torchtune
from advisor.arithmetic.parameters import ADAPTED
from advisor.arithmetic.token_log_probs import loss as picked
from advisor.arithmetic.token_log_probs import picks
from advisor.ledger import Holding

FORWARD = frozenset({at.LOSS_FORWARD})
BACKWARD = frozenset({at.LOSS_BACKWARD})
FORMULA = "tokens x vocabulary x bytes"
IN_GRAPH = "in the compiled graph"  # a loss that torch.compile sees together with the model; no word of a job: whose loop decides, or it is not known
COMPILES_WHOLE = frozenset({"hf-trainer", "accelerate"})  # torch_compile compiles the model's forward, to which the Trainer hands the labels
NORM_SOURCE = "autograd's saved tensors of the final norm and the head"


def holdings(ctx: Context) -> Iterator[Holding]:
    """The head's part of the loss phase; nothing where this pipeline stage has no head."""
    if not ctx.has_head:
        return
    if ctx.arch.classes is not None:
        return
    yield from _final(ctx)
    form = form_of(ctx)
    if form == "fused-linear":
        yield from (unsloth_loss.fused if ctx.framework == "unsloth" else fused_linear)(ctx)
        return
    if form == "chunked":
        yield from chunked(ctx, vocabulary(ctx))
        return
    loss = of(ctx, form)
    yield from _whole(ctx, loss)


def form_of(ctx: Context) -> str:
    """The loss as it really runs: Unsloth's makes whole logits in old versions and for short batches."""
    form = ctx.job.activations.loss or "full-fp32"
    if ctx.compiled and form in ("full-fp32", "full") and ctx.source == "huggingface" and ctx.framework in COMPILES_WHOLE:
        return IN_GRAPH
    return "full" if form == "fused-linear" and ctx.framework == "unsloth" and unsloth_loss.whole(ctx) else form


def vocabulary(ctx: Context) -> int:
    """Vocabulary entries of one tensor rank, padded as Megatron pads."""
    vocab = ctx.arch.vocab
    if ctx.is_megatron:
        multiple = 128 * ctx.tensor
        vocab = -(-vocab // multiple) * multiple
    return -(-vocab // ctx.tensor)


def width(ctx: Context) -> int:
    """Bytes of a logit as the head gives it: its weight's dtype, or the compute dtype under autocast and mixed strategies."""
    if ctx.autocast or ctx.job.precision.mixed in ("fsdp", "deepspeed", "megatron"):
        return ctx.compute
    kbit = ctx.method in ADAPTED and ctx.base in ("nf4", "fp4", "int8") and ctx.job.method.kbit_preparation is True
    return 4 if kbit else ctx.weight


def of(ctx: Context, form: str) -> Loss:
    """The cost of a loss on whole logits for this run's code and version."""
    logits = width(ctx)
    if form == "full-fp32" and ctx.source == "huggingface" and (ctx.arch.encoder_decoder or not ctx.arch.causal):
        form = "full"  # T5, BART, BERT and their like: CrossEntropyLoss on the logits as they are, nothing shifted or widened (modeling_t5 loss_fct)
    if ctx.framework == "verl" and ctx.job.objective in ROLLOUT_OBJECTIVES and ctx.attention in ("flash-2", "flash-3") and not ctx.is_megatron:
        return verl(4 if not ctx.at_least("transformers", *LOSS_FUNCTION_SINCE) else logits)
    if (form == "vocab-parallel" and ctx.source != "torchtitan") or (ctx.is_megatron and form in ("fused", "full", "full-fp32")):
        return megatron(logits, form)
    if ctx.framework == "unsloth" and ctx.source == "huggingface" and form == "full" and not picks(ctx, form):
        return unsloth_loss.on_logits(ctx, logits)
    if form == IN_GRAPH or (ctx.source == "torchtitan" and compiled_loss(ctx)):
        why = "logits; backward: logits + their gradient, the fp32 values never leave the kernel"
        where = "torch.compile of the whole forward" if form == IN_GRAPH else "torchtitan components/loss.py, torch.compile(loss_fn)"
        return Loss(logits, 2 * logits, float(logits), why, where)
    if ctx.source == "torchtitan" and ctx.tensor > 1:
        return dtensor(logits)
    if ctx.source == "torchtune" and form in ("full", "full-fp32"):
        return torchtune(logits, ctx.version("torchtune"))
    if ctx.source == "torchtitan":
        return Loss(
            logits + 4 + 4,
            12.0,
            float(logits),
            "logits + fp32 + log-softmax; backward: log-softmax + two fp32 gradients",
            "torchtitan components/loss.py",
            narrow=float(logits) if logits < 4 else 0.0,
        )
    if ctx.source == "remote-code" and ctx.arch.model_type in RAW_REMOTE:
        return own(form, logits, ctx.autocast)
    capped = ctx.source == "huggingface" and (ctx.arch.softcap_logits is not None or ctx.arch.model_type == "gemma2")
    if ctx.source == "huggingface" and ctx.arch.model_type in SCALED and not picks(ctx, form):
        loss = materialised(form, logits, ctx.version("transformers"), own_loss=False, autocast=ctx.autocast)
        return replace(loss, narrow=loss.narrow + (logits if loss.narrow else 0))
    if not capped and picks(ctx, form):
        return picked(ctx, logits)
    if not capped:
        return materialised(form, logits, ctx.version("transformers"), ctx.arch.model_type in OWN_LOSS, ctx.autocast)
    # autocast leaves tanh, the division and the product as they come (no kernel for AutocastCUDA: aten/src/ATen/autocast_mode.h AT_FORALL_FP32)
    loss = picked(ctx, logits) if picks(ctx, form) else materialised(form, logits, ctx.version("transformers"), own_loss=False, autocast=ctx.autocast)
    why, narrow = f"tanh of the capped logits, kept; {loss.why}", loss.narrow + (logits if logits < 4 else 0)
    return replace(loss, forward=loss.forward + logits, backward=loss.backward + logits, why=why, narrow=narrow)


def gone_before_head(ctx: Context) -> int:
    """Bytes of the loss's backward that are gone when the head's gradient is made: its wide copies, beside the logits' gradient alone."""
    if not ctx.has_head or ctx.arch.classes is not None or (form := form_of(ctx)) in ("fused-linear", "chunked"):
        return 0
    return round(ctx.tokens * vocabulary(ctx) * max(0.0, of(ctx, form).backward - width(ctx)))


def cached(ctx: Context) -> tuple[int, int]:
    """Bytes that a loss on whole logits leaves in the allocator's cache, and those of its largest blocks; zeros where no such loss runs on this stage."""
    form = form_of(ctx)
    if not ctx.has_head or ctx.arch.classes is not None or form in ("fused-linear", "chunked"):
        return 0, 0
    entries, loss = ctx.tokens * vocabulary(ctx), of(ctx, form)
    return round(entries * loss.cached), round(entries * loss.largest)


def verl(logits: int) -> Loss:
    """verl's actor: flash-attn's cross entropy keeps the logits as they are and writes the gradient over them; fp32 only inside the kernel."""
    why = "logits, divided by the temperature in place; backward: the gradient over them, and its cast for the head where they are fp32"
    source = "verl workers/actor/dp_actor.py _forward_micro_batch, utils/torch_functional.py logprobs_from_logits_flash_attn(inplace_backward=True)"
    return Loss(logits, logits if logits == 2 else logits + 2, float(logits), why, source)


def dtensor(logits: int) -> Loss:
    """torch's loss parallelism, which torchtitan turns on with tensor parallelism (``disable_loss_parallel`` False), operation by operation.

    Forward: logits, fp32, shifted by the maximum, its exponentials. Backward: log-softmax, zeros with the targets, exponentials, their sum.
    """
    why = "logits + fp32 + shifted + exponentials; backward: log-softmax + targets + exponentials + sum"
    source = "torch distributed/tensor/parallel/loss.py _log_softmax, _nll_loss_and_log_softmax_backward"
    return Loss(logits + 12, 16.0, float(logits), why, source, narrow=float(logits) if logits < 4 else 0.0)


def compiled_loss(ctx: Context) -> bool:
    """torchtitan compiled its loss until December 2024 and again from April 2025 (commits e8977b0, bbb1b61): 0.1, or torch 2.8, at least."""
    return ctx.compiled and (ctx.at_least("torchtitan", 0, 1, unknown=False) or ctx.at_least("torch", 2, 8, unknown=False))


def megatron(logits: int, form: str) -> Loss:
    """Vocabulary-parallel cross entropy (Megatron-LM core/tensor_parallel/cross_entropy.py, core/fusions/fused_cross_entropy.py).

    The logits are upcast; their exponentials are written over that copy and stay as the softmax; the gradient is written over it too and
    then cast to the logits' dtype. Fused: the compiler makes the exponentials in a fresh fp32 buffer before it copies them back (a comment
    in the newest version says so and avoids it; no release with that change is known here).
    """
    fresh = 4 if form == "fused" else 0
    why = "logits + fp32 copy (+ fresh fp32 buffer when compiled); backward: in place + its cast"
    return Loss(logits + 4 + fresh, 4 + logits, float(logits), why, "Megatron-LM core/tensor_parallel/cross_entropy.py")


def _whole(ctx: Context, loss: Loss) -> Iterator[Holding]:
    vocab = vocabulary(ctx)
    entries = ctx.tokens * vocab
    yield Holding(
        "logits",
        "logits and loss, forward",
        round(entries * loss.forward),
        FORWARD,
        FORMULA,
        {"tokens": ctx.tokens, "vocabulary": vocab, "bytes": loss.forward},
        loss.source,
        error=None,
    )
    keeps = bool(ctx.job.framework.keeps_outputs) or colossal.names_outputs(ctx) or (ctx.source == "torchtune" and loss.outputs > 0)
    yield from _backward(ctx, loss, vocab)
    yield from pipe_outputs.kept(ctx, vocab)
    if keeps:
        kept = frozenset({at.FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST, at.BACKWARD_FIRST, at.BACKWARD_ROOT, at.STEP})
        yield Holding(
            "logits", "logits in the outputs that the loop keeps", round(entries * loss.outputs), kept & ctx.moments, FORMULA,
            {"tokens": ctx.tokens, "vocabulary": vocab, "bytes": loss.outputs}, "a variable that holds the model's outputs until the next forward pass returns",
        )  # fmt: skip


def _backward(ctx: Context, loss: Loss, vocab: int) -> Iterator[Holding]:
    """The larger of two moments: the gradients within the loss; or, later, the logits' gradient beside the head's new weight gradient."""
    entries = ctx.tokens * vocab
    inside, logits = round(entries * loss.backward), width(ctx)
    head = vocab * ctx.arch.hidden * ctx.gradient
    here = ctx.method not in ADAPTED and ctx.strategy in ("none", "ddp") and not ctx.gradients_kept and not ctx.gradients_leave
    values = {"tokens": ctx.tokens, "vocabulary": vocab}
    if not here or entries * logits + head <= inside:
        yield Holding("logits", "gradients of the loss", inside, BACKWARD, FORMULA, {**values, "bytes": loss.backward}, loss.source)
        return
    yield Holding("logits", "gradient of the logits", entries * logits, BACKWARD, FORMULA, {**values, "bytes": logits}, loss.source)
    shape = {"vocabulary": vocab, "hidden": ctx.arch.hidden, "bytes": ctx.gradient}
    yield Holding(
        "gradients", "gradient of the head as it is born", head, BACKWARD, "vocabulary x hidden x bytes", shape, "torch autograd: linear's weight gradient"
    )


def _final(ctx: Context) -> Iterator[Holding]:
    """Saved by the final norm: its input (fp32 where it is written out), and the normalised tensor where its weight trains; and the head's input.

    A head that trains saves its input; else the model's own forward still names it while the loss is made (modeling_llama hidden_states).
    """
    stream = ctx.compute
    trained = ctx.method not in ADAPTED
    kind = traits.of(ctx.arch.model_type).norm if ctx.source == "huggingface" else None
    plain = "rmsnorm" in ctx.kernels or (ctx.arch.norm == "layernorm" and kind is None)
    normalised = (4 if kind in ("rms-wide", "layer-wide") else 0 if kind == "layer-float" else stream) if trained and not plain else 0
    inputs = stream if plain else 8 if kind == "layer-wide" else 4  # centred for the variance and for the quotient
    inputs += stream if kind == "rms-both" and stream < 4 and not plain and not ctx.autocast else 0
    saved = trained or any(i.fate == "trained" and i.role == "head" for i in ctx.counts.outer.items)
    each: float = inputs + normalised + (stream if saved else 0)
    if ctx.sequence_parallel and not ctx.is_megatron:  # the norm works on a rank's part; the head's input is gathered
        each = (each - (stream if saved else 0)) / ctx.tensor + (stream if saved else 0)
    what = "norm input" + (" + normalised" if trained and not plain else "") + (" + head input" if saved else "")
    values = {"tokens": ctx.tokens, "hidden": ctx.arch.hidden, "bytes": each, "what": what}
    formula, entries = "tokens x hidden x bytes", ctx.tokens * ctx.arch.hidden
    yield Holding("activations", "final norm", round(entries * each), FORWARD | BACKWARD, formula, values, NORM_SOURCE)
    if not saved:
        values = {"tokens": ctx.tokens, "hidden": ctx.arch.hidden, "bytes": stream}
        yield Holding("activations", "hidden states that the model's forward names", entries * stream, FORWARD, formula, values, NORM_SOURCE)
