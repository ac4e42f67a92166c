"""Bytes that kernels other than products move through the card's memory: they run one after the other, so their times add.

Counts are reads and writes of Hugging Face's eager modelling code in bf16 (transformers 5.24, modeling_llama.py), bytes a token and layer:
RMSNorm 36 a channel (to fp32 2+4, square 4+4, mean 4, scale 4+4, back 4+2, weight 2+2), fused 4; rotary embedding 18, fused 4;
silu and product 10 of the MLP width, fused 6; two residual sums 12. Backward moves about twice that.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.job import Job
from advisor.pace.products import recomputed
from advisor.pace.shape import ADAPTERS, BITS, WIDTH, Sizes

NORM, NORM_FUSED = 36.0, 4.0
ROTARY, ROTARY_FUSED = 18.0, 4.0
GATED, GATED_FUSED = 10.0, 6.0
PLAIN = 12.0  # tanh-GELU as several kernels
RESIDUAL = 12.0
COMPILED = 0.3  # share of the element-wise traffic that is left after the compiler has fused it with its neighbours
BACKWARD = 2.0
ADAPTER_IN, ADAPTER_OUT = 7.0, 12.0  # dropout 5 and read 2; product out 2, scale 4, sum 6 (peft tuners/lora/layer.py)
WIDE = 1.6  # fp32 norms and residual stream under autocast: most of the traffic doubles, casts come on top
LOSS = {"full-fp32": 40.0, "full": 24.0, "fused": 14.0, "vocab-parallel": 16.0, "chunked": 24.0, "fused-linear": 12.0}  # bytes a logit, forward and backward

# reads and writes of one element of (parameter, gradient, two states) in a step
STEP_ACCESSES = {"foreach": 18.0, "for-loop": 18.0, "fused": 7.0, "multi-tensor": 7.0}
STATES_MOVED = {"sgd": 0.0, "sgd-momentum": 0.4, "lion": 0.6, "muon": 0.6, "adafactor": 0.7}  # share of AdamW's traffic that remains


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes moved: a micro-batch's element-wise kernels, its loss, its unpacking of quantised weights; and one optimizer step."""

    elementwise: float
    loss: float
    unpacking: float
    step: float


def moved(s: Sizes, job: Job, shared: float) -> Bytes:
    """Bytes of one rank. ``shared``: over how many ranks the optimizer's work is divided."""
    again = recomputed(job)
    divided = s.pipeline
    kernels = frozenset(job.activations.kernels or ())
    tensors = s.tensor if job.parallel.sequence else 1
    norms = 2 * s.hidden * (NORM_FUSED if kernels & {"rmsnorm", "layernorm"} else NORM) / tensors
    rotary = (s.query_width + s.key_width) * (ROTARY_FUSED if "rope" in kernels else ROTARY) / s.tensor
    mlp = s.mlp_width * ((GATED_FUSED if "swiglu" in kernels else GATED) if s.gated else PLAIN) / s.tensor
    layer = norms + rotary + mlp + s.hidden * RESIDUAL / tensors
    if job.activations.compile:
        layer *= COMPILED
    if (job.method.kind in ADAPTERS and job.method.kbit_preparation and job.method.base not in (None, "none")) or (
        job.precision.weights == "fp32" and job.precision.mixed == "autocast"
    ):
        layer *= WIDE
    forward = layer * s.layers * s.tokens
    elementwise = forward * (1 + again.elementwise + BACKWARD)
    if job.method.kind in ADAPTERS:
        adapted = s.tokens * (ADAPTER_IN * s.adapted_in + ADAPTER_OUT * s.adapted_out) / s.tensor * (0.5 if "lora" in kernels else 1.0)
        adapted *= COMPILED if job.activations.compile else 1.0
        elementwise += adapted * (2 + again.dense) * (2.0 if job.method.kind == "dora" else 1.0)
    if job.activations.attention in ("eager", "te-unfused"):
        scores = s.tokens * s.seq_len * s.query_width / max(s.query_width / 128, 1) / 128 * (s.query_width / 128)
        elementwise += scores * 16 * s.layers * (1 + again.attention + BACKWARD) / s.tensor
    loss = s.tokens * s.vocab * LOSS.get(job.activations.loss or "full-fp32", 40.0) / s.tensor
    if job.activations.compile:
        loss *= 0.5
    return Bytes(elementwise / divided, loss / divided, _unpacking(s, job, again.dense) / divided / s.tensor, _step(s, job) / max(shared, 1.0))


def _unpacking(s: Sizes, job: Job, again: float) -> float:
    """A packed weight is read and written out in 16 bits before each product: forward, recomputation, gradient of the input."""
    bits = BITS.get(job.method.base or "none")
    if bits is None:
        return 0.0
    return s.block_elements * (bits / 8 + 2) * (2 + again)


def _step(s: Sizes, job: Job) -> float:
    """Bytes of one optimizer step over all trained parameters, gradient norm included (a read and a scaling)."""
    o, precision = job.optimizer, job.precision
    weights = WIDTH.get((job.method.adapter_dtype if job.method.kind in ADAPTERS else precision.weights) or "bf16", 2)
    states = WIDTH.get(o.states or "fp32", 4)
    gradients = WIDTH.get(precision.gradients or "bf16", 2)
    if o.name in ("adamw-8bit", "paged-adamw-8bit", "adamw-4bit"):
        return s.trained * (2 * weights + 3 * gradients + 4) * 2.5  # block-wise unpacking and packing is bound by more than its bytes
    accesses = STEP_ACCESSES.get(o.implementation or "foreach", 18.0) * STATES_MOVED.get(o.name or "adamw", 1.0)
    wide = (2 * states + weights + gradients) / 4
    master = 4 * 2 if precision.master == "fp32" else 0
    return s.trained * (accesses * wide + 3 * gradients + master)
