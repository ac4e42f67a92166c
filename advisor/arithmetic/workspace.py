"""Scratch memory of libraries inside torch's allocator."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic.context import Context
from advisor.ledger import Holding

CUBLAS_BYTES = 8_519_680  # :4096:2:16:8, aten/src/ATen/cuda/CublasHandlePool.cpp
CUBLAS_BYTES_HOPPER = 32 * 1024**2  # compute capability 9.0 and later, same file


def holdings(ctx: Context) -> Iterator[Holding]:
    """cuBLAS keeps one workspace a thread (forward and backward) and stream, for the life of the process."""
    each = CUBLAS_BYTES_HOPPER if ctx.sm is not None and ctx.sm >= 90 else CUBLAS_BYTES
    yield Holding(
        "workspace", "cuBLAS workspaces", 2 * each, ctx.trains, "threads x bytes_each", {"threads": 2, "bytes_each": each},
        "torch aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize",
    )  # fmt: skip
