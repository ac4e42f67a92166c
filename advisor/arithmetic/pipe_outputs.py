"""DeepSpeed's pipeline engine keeps what its last stage returned: the fp32 logits of the last micro batches."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

BUFFERS = 2  # runtime/pipe/schedule.py TrainSchedule.num_pipe_buffers on the last stage: max(2, 1)
SOURCE = (
    "deepspeed runtime/pipe/engine.py _exec_backward_pass (0.5 to 0.19): the last stage returns before pipe_buffers['outputs'] is emptied; "
    "Megatron-DeepSpeed gpt_model.py GPTModelPipe ends in float16_to_fp32"
)


def kept(ctx: Context, vocabulary: int) -> Iterator[Holding]:
    """Logits in the engine's buffers, of micro batches whose backward pass is over.

    Megatron-DeepSpeed runs on this engine with ZeRO up to stage 1, also on one stage. A buffer is overwritten when the forward pass that reuses
    it has returned, so both live while new logits are made; the current micro batch's own are among the loss's until its backward has run.
    """
    if ctx.source != "megatron" or ctx.strategy != "zero1" or not ctx.has_head:
        return
    micro = ctx.job.parallel.microbatches if ctx.pipeline > 1 else ctx.accumulation
    buffers = min(BUFFERS, micro or 1)
    entries = ctx.tokens * vocabulary
    for count, moments in ((buffers, ctx.trains - {at.LOSS_BACKWARD}), (buffers - 1, ctx.trains & {at.LOSS_BACKWARD})):
        if count:
            yield Holding(
                "logits", "logits in the pipeline engine's buffers", count * entries * 4, moments, "buffers x tokens x vocabulary x 4",
                {"buffers": count, "tokens": ctx.tokens, "vocabulary": vocabulary}, SOURCE, dtype="fp32", need="avoidable",
            )  # fmt: skip
