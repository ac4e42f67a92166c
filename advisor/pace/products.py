"""Floating-point operations of matrix products and attention, one micro-batch, one rank.

A product of ``T`` tokens with a matrix of ``E`` elements is ``2 T E`` operations forward, as many for the gradient of its input, and as many
for the gradient of the matrix where that is trained. Attention over a causal sequence is ``2 T s (d_qk + d_v)`` with half the scores,
and 2.5 times that backward (five products for two; FlashAttention-2, arXiv 2307.08691, section 4.1).
"""

from __future__ import annotations

from msgspec import Struct

from advisor.job import Job
from advisor.pace.shape import ADAPTERS, Sizes

ATTENTION_BACKWARD = 2.5


class Operations(Struct, frozen=True):
    """Operations of a micro-batch on one rank."""

    dense: float
    attention: float
    adapters: float  # products of the adapters: narrow matrices, and in fp32 where the adapters are


class Recomputed(Struct, frozen=True):
    """Share of the blocks' forward pass that runs a second time: products, attention, element-wise kernels."""

    dense: float
    attention: float
    elementwise: float


def recomputed(job: Job) -> Recomputed:
    """What checkpointing computes twice.

    Full: everything in the blocks. Every n-th layer: a share. Megatron's ``core_attn``: attention only; its other modules are cheap to compute again.
    torchtitan's policy keeps attention and every second product (torchtitan activation_checkpoint.py).
    """
    a = job.activations
    if a.checkpointing == "full":
        return Recomputed(1.0, 1.0, 1.0)
    if a.checkpointing != "selective":
        return Recomputed(0.0, 0.0, 0.0)
    chosen = a.selective
    if chosen is None or (chosen.every_nth_layer is None and not chosen.ops):
        return Recomputed(0.5, 0.0, 1.0)
    if chosen.every_nth_layer is not None:
        share = 1.0 / chosen.every_nth_layer
        return Recomputed(share, share, share)
    ops = chosen.ops or ()
    dense = (0.6 if "mlp" in ops or "moe" in ops else 0.0) + (0.05 if "mla_up_proj" in ops else 0.0)
    elementwise = 0.3 * ("layernorm" in ops) + 0.3 * bool({"moe_act", "mlp", "moe"} & set(ops))
    return Recomputed(dense, 1.0 if "core_attn" in ops else 0.0, elementwise)


def span(s: Sizes, causal: bool) -> float:
    """Keys that a token attends to, on average: half of the sequence before it, or its window once the sequence is longer than that."""
    if not causal:
        return s.seq_len
    width = min(s.seq_len, s.window) if s.window else s.seq_len
    return width * (1 - width / (2 * s.seq_len))


def product_bytes(s: Sizes, job: Job) -> float:
    """Bytes that the products of a micro-batch read and write on one rank: in 16 bits ``2 (T (in + out) + in out)`` a matrix and product.

    A tensor group divides the input or the output of a matrix, not both.
    """
    again = recomputed(job)
    products = 2 + again.dense + (0 if job.method.kind in ADAPTERS else 1)
    width = 1.2 if job.precision.compute in ("fp8", "mxfp8", "nvfp4") else 2  # two operands of one byte, a result of two
    return width * products * (s.tokens * s.widths * (1 + 1 / s.tensor) / 2 + s.block_elements / s.tensor) / s.pipeline


def operations(s: Sizes, job: Job, causal: bool) -> Operations:
    """Operations of one micro-batch on one rank."""
    again = recomputed(job)
    divided = s.tensor * s.pipeline
    forward = 2 * s.tokens * s.block_elements
    frozen = job.method.kind in ADAPTERS
    weight_gradient = 0.0 if frozen else forward * min(1.0, s.trained / max(s.parameters, 1))
    adapters = 2 * s.tokens * s.adapter_elements * (3 + again.dense) if frozen else 0.0
    blocks = forward * (2 + again.dense) + weight_gradient
    head = 2 * s.tokens * s.head_elements * (2 if frozen else 3)
    if job.offload.tiled_mlp:
        blocks += forward * 0.6  # tiles are computed again in the backward pass, the MLP's share of a block
    scores = 2 * s.tokens * span(s, causal) * (s.query_width + s.value_width) * s.layers
    attention = scores * (1 + again.attention + ATTENTION_BACKWARD)
    return Operations(blocks / divided + head / divided, attention / divided, adapters / divided)
