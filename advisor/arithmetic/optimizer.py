"""Optimizer states and the temporaries of its step."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.sharding import learned_share, split, state_ranks
from advisor.ledger import Holding

STATES_HELD = {"sgd": 0, "sgd-momentum": 1, "lion": 1, "muon": 1}  # state tensors of the parameter's size; two where not listed


def holdings(ctx: Context) -> Iterator[Holding]:
    """States (from the second step on) and the step's temporary."""
    job, c = ctx.job, ctx.counts
    if not c.learned:
        return
    ranks = state_ranks(ctx)
    share = learned_share(ctx, ranks)
    number = STATES_HELD.get(ctx.optimizer, 2)
    each = ctx.state
    size = number * each * share
    host = job.offload.optimizer in ("cpu", "nvme")
    alive = ctx.moments - {at.LOAD_MATERIALISE, at.LOAD_READY}
    if size:
        yield Holding(
            "optimizer", "optimizer states", size, alive, "state_tensors x elements x bytes_each / ranks",
            {"state_tensors": number, "elements": c.learned, "bytes_each": each, "ranks": ranks}, "torch.optim state of the parameter's size",
            dtype=job.optimizer.states, device="host" if host else "gpu", layout="sharded" if ranks > 1 else "dense",
        )  # fmt: skip
    if host:
        return
    if (job.optimizer.implementation or "foreach") == "foreach" and number == 2:
        yield Holding(
            "optimizer", "foreach temporary (square root of the second moment)", each * share, ctx.trains & {at.STEP}, "elements x bytes_each / ranks",
            {"elements": c.learned, "bytes_each": each, "ranks": ranks}, "torch.optim.adam _multi_tensor_adam: torch._foreach_sqrt",
            dtype=job.optimizer.states,
        )  # fmt: skip
    elif job.optimizer.implementation == "for-loop":
        yield Holding(
            "optimizer", "temporary of one tensor", 2 * each * split(c.largest, ranks), ctx.trains & {at.STEP}, "2 x largest_tensor x bytes_each / ranks",
            {"largest_tensor": c.largest, "bytes_each": each, "ranks": ranks}, "torch.optim.adam _single_tensor_adam: sqrt, then its quotient",
        )  # fmt: skip
