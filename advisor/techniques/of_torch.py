"""Techniques that are PyTorch's, or a library's on top of it: none of them is there for a program that XLA compiles (JAX, TensorFlow).

What is left for such a program has its own lines on the technique's page (``for: [jax]``), or none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from advisor.program import compiled_by_xla
from advisor.run import Run
from advisor.techniques.technique import NotApplicable

# PyTorch's allocator and optimizers, kernels of Liger, flash-attn and bitsandbytes, torch's and DeepSpeed's ways of dividing, Megatron's
OF_TORCH = frozenset({
    "apply-quantization", "bounded-shapes", "context-parallel", "double-quantization", "eight-bit-optimizer", "empty-cache", "expandable-segments",
    "expert-parallel", "fsdp", "fused-kernels", "fused-linear-loss", "fused-optimizer", "galore", "hybrid-shard", "keep-kbit-narrow", "leave-headroom",
    "limit-all-gathers", "map-each-rank", "merge-on-host", "offload-nvme", "offload-optimizer", "offload-parameters", "optimizer-in-backward",
    "paged-optimizer", "pipeline-parallel", "qlora", "raise-memory-cap", "restore-flash-attention", "restore-fused-loss", "sequence-parallel",
    "shard-before-move", "sharded-save", "smaller-buckets", "sync-each-microbatch", "tensor-parallel", "tiled-mlp", "ulysses", "wrap-each-block",
    "wrap-frozen-apart", "zero-1", "zero-2", "zero-3",
})  # fmt: skip

Apply = Callable[[Run], Run | NotApplicable]


def guarded(id: str, apply: Apply) -> Apply:
    """The technique, which says of a program of JAX or TensorFlow that it is not for it."""
    if id not in OF_TORCH:
        return apply

    @wraps(apply)
    def checked(run: Run) -> Run | NotApplicable:
        if compiled_by_xla(run):
            return NotApplicable("it is PyTorch's or a library's on top of it, and XLA compiles this program", settled=True)
        return apply(run)

    return checked
