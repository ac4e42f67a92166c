"""The vision tower: its blocks run before the text; trained or with adapters, it keeps what autograd asks of it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.architecture import Block, ConfigError
from advisor.architecture.vision_tokens import vision_tokens
from advisor.arithmetic import moments as at
from advisor.arithmetic import settings, tower_ends
from advisor.arithmetic.batches import on_card
from advisor.arithmetic.blocks.block import settled
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Size
from advisor.arithmetic.context import Context
from advisor.arithmetic.fates import projects, tower_of
from advisor.arithmetic.parameters import ADAPTED
from advisor.ledger import Holding

MERGE = {"internvl_chat": 4, "glm4v": 4}  # patches that become one token of the text, of families whose images are not known here
UNTIL_LOSS = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD})
UNTIL_BACKWARD = UNTIL_LOSS | {at.BACKWARD_LAST, at.BACKWARD_FIRST}
UNTIL_RETURN = frozenset({at.FORWARD, at.LOSS_FORWARD})  # the tower's outputs are named to the end of the model's forward
SOURCE = "autograd's saved tensors of the tower's blocks; its own norms, gated or plain MLP, attention without a score matrix"
ERROR = "an eager tower's scores are not counted"
PIXEL = 4  # processors give fp32
OWN_CHECKPOINTING = frozenset({"llama-factory", "ms-swift", "unsloth"})  # put their own in its place
UNSHOWN = ("qwen3",)


def _sample(ctx: Context) -> tuple[int, int]:
    """Tokens and patches of one sample, by the family's own rule: Gemma 3 makes one token of sixteen, SmolVLM of sixteen, Qwen-VL of four."""
    try:
        found = vision_tokens(ctx.job.model)
    except ConfigError:
        found = None
    tokens = (ctx.job.model.vision.tokens or 0) if ctx.job.model.vision is not None else 0
    return (found.tokens, found.patches) if found is not None else (tokens, tokens * MERGE.get(ctx.arch.model_type, 1))


def holdings(ctx: Context) -> Iterator[Holding]:
    """The pixels, and what a tower keeps that trains or has adapters; of a frozen one (no gradient enters it) nothing, as of a skipped one."""
    vision = ctx.job.model.vision
    if vision is None or not ctx.arch.vision or vision.tower == "skipped" or not ctx.has_embedding:
        return
    tokens, patches = (ctx.micro_batch * number for number in _sample(ctx))
    if not patches:
        return
    trained = tower_of(ctx.job) == "trained"
    yield from _pixels(ctx, patches, trained=trained and ctx.method not in ADAPTED)
    passed = trained or asked_of_inputs(ctx)
    if asked_of_inputs(ctx):
        yield from tower_ends.leaves(ctx, patches, trained=trained)
    learns = ctx.method not in ADAPTED and (trained or not projects(ctx.arch, ctx.job))
    if passed or learns:
        yield from _projector(ctx, tokens, learns=learns or trained)
    if not passed:
        return
    yield from tower_ends.behind(ctx, patches)
    yield from tower_ends.before(ctx, patches, trained=trained and ctx.method not in ADAPTED)
    full = vision.tower_checkpointing == "full" or (vision.tower_checkpointing is None and ctx.checkpointing == "full" and ctx.source == "huggingface")
    yield from tower_ends.apart(ctx, patches, full=full)
    left = ctx.arch.vision_unused
    for block in reversed(ctx.arch.vision):
        unread = min(block.count, left)
        count, left = block.count - unread, left - unread
        c = settled(block, ctx.arch.vision_hidden or block.heads * block.head_dim, _setting(ctx, block, trained=trained))
        size = c.input if full else c.total
        values = {"blocks": count, "patches": patches, "bytes a patch": size[0]}
        name = "vision tower (checkpoints)" if full else "vision tower"
        formula = "blocks x patches x bytes a patch"
        yield Holding("activations", name, _bytes(size, patches) * count, UNTIL_BACKWARD, formula, values, SOURCE, error=ERROR)
        if unread:
            values = {"blocks": unread, "patches": patches, "bytes a patch": size[0]}
            what = "vision tower's last blocks, whose output nobody reads"
            yield Holding("activations", what, _bytes(size, patches) * unread, UNTIL_RETURN, formula, values, SOURCE)
        running = max([_bytes(s.saved, patches) + _bytes(s.live, patches) for s in c.backward] + [_bytes(s, patches) for s in c.again])
        if count:
            yield from _running(ctx, _bytes(size, patches), running, count, full=full)


def _running(ctx: Context, kept: int, running: int, count: int, *, full: bool) -> Iterator[Holding]:
    """The tower runs backward when the text has its gradients: its first block beside all that is kept, its last beside the other blocks' gradients.

    Both are told as what they need beyond all of the tower's gradients, which this moment counts.
    """
    own = sum(unit.layers * (unit.trained * ctx.gradient + unit.adapters * ctx.adapter) for unit in ctx.counts.vision)
    first, last = kept * (count if full else count - 1) + running - own, (kept if full else 0) + running - own // count
    if max(first, last) > 0:
        values = {"blocks": count, "bytes a block keeps": kept, "bytes of the running block": running, "bytes of the tower's gradients": own}
        formula = "the larger of kept x blocks + running - gradients, and kept + running - gradients / blocks"
        yield Holding("activations", "vision tower as it runs backward", max(first, last), frozenset({at.BACKWARD_ROOT}), formula, values, SOURCE)


def _bytes(size: Size, patches: int) -> int:
    return round(size[0] * patches + size[2] + size[3])


def asked_of_inputs(ctx: Context) -> bool:
    """Whether gradients are asked of a frozen tower's embedded patches, so that it keeps its checkpoints and runs backward for nothing.

    transformers 5 does so for every part that shows its input embeddings, when it turns checkpointing on (modeling_utils
    ``_activation_checkpointing_enable``, ``enable_input_require_grads``; read in 5.24). Qwen3-VL's tower shows none.
    """
    asks = ctx.checkpointing == "full" and ctx.source == "huggingface" and ctx.at_least("transformers", 5)
    return asks and ctx.framework not in OWN_CHECKPOINTING and not ctx.arch.model_type.startswith(UNSHOWN)


def _projector(ctx: Context, tokens: int, *, learns: bool) -> Iterator[Holding]:
    """What the projection to the text keeps: inputs of the activations between the matrices, and of the norm before the first.

    Where it ``learns`` the input of each matrix too. An RMS norm keeps fp32, and what it normed for its weight's gradient.
    """
    layers = [t for t in ctx.arch.outer if t.role == "projector" and len(t.shape) == 2]
    ends = [((t.shape[1], t.shape[0]) if t.linear else (t.shape[0], t.shape[1]), t.times) for t in layers]  # a bare parameter is stored [in, out]
    if not ends:
        return
    inner = sum(times * ((inside if learns else 0) + (out if index + 1 < len(ends) else 0)) for index, ((inside, out), times) in enumerate(ends))
    widened = "ln_q" in {t.name for t in ctx.arch.outer} and "ln_q.bias" not in {t.name for t in ctx.arch.outer}
    normed = (4 + (ctx.compute if learns else 0)) if widened else ctx.compute
    each = inner * ctx.compute + ends[0][0][0] * normed
    values = {"tokens": tokens, "bytes a token": each}
    yield Holding("activations", "projection of the images", tokens * each, UNTIL_BACKWARD, "tokens x bytes a token", values, SOURCE)


def _pixels(ctx: Context, patches: int, *, trained: bool) -> Iterator[Holding]:
    """The images as the data loader brings them, fp32, which the loop names until the next batch; and what the patches' convolution keeps of them."""
    kernel = next((t for t in ctx.arch.outer if t.role == "vision" and len(t.shape) in (4, 5)), None)
    each = (kernel.elements // kernel.shape[0] if kernel is not None else 0) * PIXEL
    batches = on_card(ctx)
    values = {"micro batches": batches, "patches": patches, "bytes a patch": each}
    formula = "micro batches x patches x channels x frames x patch x patch x 4"
    yield Holding("activations", "pixels", batches * patches * each, at.COMPUTE, formula, values, "transformers image processors; trainer.py get_batch_samples")
    if trained and ctx.compute < PIXEL:
        narrow = each // PIXEL * ctx.compute
        values = {"patches": patches, "bytes a patch": narrow}
        yield Holding("activations", "pixels in the tower's dtype", patches * narrow, UNTIL_BACKWARD, "patches x bytes a patch", values, SOURCE)


def _setting(ctx: Context, block: Block, *, trained: bool) -> Setting:
    """The text's dtypes, base and adapters; the tower's own norms, activation and positions, no mask and no dropout."""
    text = settings.of(ctx, block)
    sixteen = ctx.compute == 2 and not (ctx.sm is not None and ctx.sm < 80)
    second = any(t.name == "norm1.bias" for t in block.tensors)
    return replace(
        text, kernel="eager" if ctx.attention == "eager" else "flash" if sixteen else "efficient", masked=False, bias=0, expanded=False,
        attention_dropout=0.0, hidden_dropout=0.0, inner_dropout=0.0, softcap=False, post=False, around=False, wide_qk=False, bare_qk=False, value_norm=False,
        norm_kind="layer" if second or not block.gated else "rms", activation=ctx.arch.vision_activation, rotary="joined" if ctx.arch.vision_rotary else "none",
        trained=trained and ctx.method not in ADAPTED, adapted=text.adapted if trained else frozenset(), cached_keys=False,
    )  # fmt: skip
