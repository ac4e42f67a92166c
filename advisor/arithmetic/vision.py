"""The vision tower: its blocks run before the text; trained, it keeps what autograd asks of it."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.architecture import ConfigError
from advisor.architecture.vision_tokens import vision_tokens
from advisor.arithmetic import moments as at
from advisor.arithmetic.blocks.block import count
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

MERGE = {"internvl_chat": 4, "glm4v": 4}  # patches that become one token of the text, of families whose images are not known here
UNTIL_BACKWARD = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST, at.BACKWARD_FIRST})
SOURCE = "autograd's saved tensors of the tower's blocks; its own norms, gated or plain MLP, attention without a score matrix"
ERROR = "window attention and rotary details of the tower are not counted apart"


def _patches(ctx: Context) -> int:
    """Patches of one sample, by the family's own rule: Gemma 3 makes one token of sixteen, SmolVLM of sixteen, Qwen-VL of four."""
    try:
        found = vision_tokens(ctx.job.model)
    except ConfigError:
        found = None
    tokens = (ctx.job.model.vision.tokens or 0) if ctx.job.model.vision is not None else 0
    return found.patches if found is not None else tokens * MERGE.get(ctx.arch.model_type, 1)


def holdings(ctx: Context) -> Iterator[Holding]:
    """What a trained tower keeps; nothing where it is frozen (no gradient enters it) or skipped."""
    vision = ctx.job.model.vision
    if vision is None or not ctx.arch.vision or vision.tower != "trained" or not vision.tokens or not ctx.has_embedding:
        return
    patches = ctx.micro_batch * _patches(ctx)
    for block in ctx.arch.vision:
        setting = Setting(
            stream=ctx.compute, weight=ctx.compute, norm=ctx.compute, compute=ctx.compute,
            norm_kind="rms" if block.gated else "layer", activation="silu" if block.gated else "gelu", fused=ctx.kernels, input_grad=True,
        )  # fmt: skip
        c = count(block, ctx.arch.vision_hidden or block.heads * block.head_dim, setting)
        full = vision.tower_checkpointing == "full"
        each = round((c.input[0] if full else c.total[0]) * patches)
        values = {"blocks": block.count, "patches": patches, "bytes a patch": c.input[0] if full else c.total[0]}
        name = "vision tower (checkpoints)" if full else "vision tower"
        yield Holding("activations", name, each * block.count, UNTIL_BACKWARD, "blocks x patches x bytes a patch", values, SOURCE, error=ERROR)
