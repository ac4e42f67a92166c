"""ZeRO-3 on a model that was built before the engine: autograd keeps every gathered weight until its backward pass."""

from __future__ import annotations

from advisor.arithmetic.context import Context

WRAPPED_SINCE = (0, 19, 4)  # deepspeed pull request 8189: initialize() too replaces torch's linear by one that keeps no weight


def kept_by_autograd(ctx: Context) -> int:
    """Elements of gathered linear weights that stay until the backward pass; 0 under full checkpointing (only the running block's are kept then).

    ``torch.nn.functional.linear`` saves a view of its weight for the input's gradient. DeepSpeed frees a parameter by giving it other data,
    but the view holds the gathered memory. A model that is built under ``zero.Init`` (transformers' from_pretrained does so) has that function
    replaced (runtime/zero/linear.py); one that is moved to the device whole and then handed to ``deepspeed.initialize`` had not, before 0.19.4.
    """
    whole = ctx.job.load is not None and ctx.job.load.move_before_sharding
    if not whole or ctx.checkpointing == "full" or ctx.at_least("deepspeed", *WRAPPED_SINCE, unknown=False):
        return 0
    roles = ("attention", "mlp", "expert", "shared-expert", "router", "mixer", "head", "projector", "other")
    return sum(i.total * u.layers for u in ctx.counts.units for i in u.items if i.matrix and i.role in roles and i.fate != "quantised")
