"""What a block leaves behind after its forward pass: everything, its input only, or a chosen part."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.blocks.tape import Counted
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

FORWARD_ON = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST})
SOURCE = "torch.utils.checkpoint: keeps the inputs of the checkpointed block"


def checkpoints(ctx: Context, counted: Counted, layers: int, *, name: str = "layer inputs", tokens: int | None = None) -> Iterator[Holding]:
    """Inputs of checkpointed blocks, one a block, in the dtype of the residual stream; on the host where activations are offloaded."""
    count = ctx.tokens if tokens is None else tokens
    each = round(counted.input[0] * count)
    offloaded = ctx.job.offload.activations == "cpu"
    values = {"tokens": count, "bytes a token": round(counted.input[0]), "layers": layers}
    if offloaded:
        yield Holding("activations", f"{name} (offloaded)", each * layers, FORWARD_ON, "layers x tokens x bytes a token", values, SOURCE, device="host")
        layers = 1
    yield Holding("activations", f"{name} (checkpoints)", each * layers, FORWARD_ON, "layers x tokens x bytes a token", {**values, "layers": layers}, SOURCE)
    yield Holding("activations", "input of the first layer", each, frozenset({at.BACKWARD_FIRST}), "tokens x bytes a token", values, SOURCE)
