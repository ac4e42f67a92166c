"""Around a vision tower's blocks: embedded patches, the norms before and behind, and Pixtral's mask between images."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic import settings
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import ADAPTED
from advisor.ledger import Holding

UNTIL_BACKWARD = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST, at.BACKWARD_FIRST})
UNTIL_END = at.COMPUTE
SOURCE = "autograd's saved tensors of the tower outside its blocks"
MASK_SOURCE = "modeling_pixtral PixtralVisionModel.forward: generate_block_attention_mask"
MOVED = ("position_embedding", "ln_pre")  # something is made of the embedded patches before the first block
WINDOWED = ("qwen2_5_vl", "qwen2_5_omni")


def leaves(ctx: Context, patches: int, *, trained: bool) -> Iterator[Holding]:
    """Embeddings of which gradients are asked without a trained table: leaves of the graph, whose gradient nodes hold them until backward reaches them.

    Those of the tokens, before the images are put among them (masked_scatter gives a new tensor); those of the patches where something is made of
    them before the first block: places are added (CLIP, SigLIP), or their order is changed (modeling_qwen2_5_vl ``permute_input_for_window_attn``).
    """
    moved = ctx.arch.model_type.startswith(WINDOWED) or any(t.name.startswith(MOVED) for t in ctx.arch.outer)
    text = ctx.tokens if ctx.method in ADAPTED else 0
    seen = patches if moved and (ctx.method in ADAPTED or not trained) else 0
    size = (text * ctx.arch.hidden + seen * ctx.arch.vision_hidden) * settings.stream(ctx)
    values = {"tokens": text, "hidden size": ctx.arch.hidden, "patches": seen, "tower's hidden size": ctx.arch.vision_hidden}
    formula = "(tokens x hidden size + patches x tower's hidden size) x bytes"
    yield Holding("activations", "embeddings that gradients are asked of", size, UNTIL_END, formula, values, SOURCE)


def before(ctx: Context, patches: int, *, trained: bool) -> Iterator[Holding]:
    """The norm before the blocks: CLIP's layer norm keeps its input, Pixtral's RMS norm an fp32 copy and, where its weight trains, the normalised patches."""
    names = {t.name for t in ctx.arch.outer if t.role == "vision"}
    stream = settings.stream(ctx)
    each = (4 + (stream if trained else 0)) if "ln_pre" in names else stream if "pre_layrnorm" in names else 0
    values = {"patches": patches, "hidden size": ctx.arch.vision_hidden, "bytes": each}
    size, formula = patches * ctx.arch.vision_hidden * each, "patches x hidden size x bytes"
    yield Holding("activations", "norm before the tower's blocks", size, UNTIL_END, formula, values, SOURCE)


def behind(ctx: Context, patches: int) -> Iterator[Holding]:
    """What is kept between the last block and the projection: SigLIP's last norm keeps its input, Gemma 3's pooling the patches laid out as an image.

    Source: modeling_siglip SiglipVisionModel.post_layernorm (CLIP's is for the pooled token alone); modeling_gemma3 Gemma3MultiModalProjector.
    """
    names = {t.name for t in ctx.arch.outer if t.role == "vision"}
    normed = 1 if "post_layernorm" in names and "class_embedding" not in names else 0
    pooled = 1 if ctx.arch.model_type == "gemma3" else 0
    each = ctx.arch.vision_hidden * (normed * settings.stream(ctx) + pooled * settings.stream(ctx))
    values = {"patches": patches, "bytes a patch": each}
    yield Holding("activations", "behind the tower's blocks", patches * each, UNTIL_BACKWARD, "patches x bytes a patch", values, SOURCE)


def apart(ctx: Context, patches: int, *, full: bool) -> Iterator[Holding]:
    """Pixtral's mask that keeps images apart: all patches of the batch lie in one row, so it has their square; none with flash attention.

    In the embedded patches' dtype; where that is wider, each call of the kernel narrows it: a copy a block, with checkpointing of the one that runs.
    Source: modeling_pixtral ``generate_block_attention_mask``; ATen autocast_mode.h, scaled_dot_product_attention in lower precision.
    """
    if "ln_pre" not in {t.name for t in ctx.arch.outer} or ctx.attention in ("flash-2", "flash-3") or ctx.source != "huggingface":
        return
    stream = settings.stream(ctx)
    copies = 0 if stream <= ctx.compute or ctx.attention == "eager" else 1 if full else sum(block.count for block in ctx.arch.vision)
    each = stream + copies * ctx.compute
    values = {"patches": patches, "narrowed copies": copies, "bytes": each}
    yield Holding("attention", "mask that keeps images apart", patches * patches * each, UNTIL_END, "patches x patches x bytes", values, MASK_SOURCE)
