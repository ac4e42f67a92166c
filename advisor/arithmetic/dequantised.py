"""16-bit weights that a quantised layer builds for the moment of a product. Those of the blocks are counted with the running block."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

AT_HEAD = frozenset({at.LOSS_FORWARD, at.LOSS_BACKWARD})
SOURCE = "lightning fabric BitsandbytesPrecision quantises every nn.Linear, the head too; bitsandbytes MatMul4Bit builds the whole weight each time"


def holdings(ctx: Context) -> Iterator[Holding]:
    """The language head where it is quantised too (litgpt); elsewhere the head stays in 16 bit."""
    if ctx.source != "litgpt" or ctx.base not in ("nf4", "fp4") or not ctx.has_head:
        return
    values = {"vocabulary": ctx.arch.vocab, "hidden": ctx.arch.hidden, "bytes": ctx.compute}
    yield Holding("dequantised", "head in 16 bit", ctx.arch.vocab * ctx.arch.hidden * ctx.compute, AT_HEAD, "vocabulary x hidden x bytes", values, SOURCE)
