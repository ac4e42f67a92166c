"""Bytes that kernels other than products move through the card's memory: they run one after the other, so their times add.

Counts are reads and writes of Hugging Face's eager modelling code in bf16 (transformers 5.24, modeling_llama.py), bytes a token and layer:
RMSNorm 36 a channel (to fp32 2+4, square 4+4, mean 4, scale 4+4, back 4+2, weight 2+2), fused 4; rotary embedding 18, fused 4;
silu and product 10 of the MLP width, fused 6; two residual sums 12. Backward moves about twice that.
"""

from __future__ import annotations

from msgspec import Struct

from advisor.job import Job
from advisor.pace.efficiency import shared
from advisor.pace.products import recomputed
from advisor.pace.shape import ADAPTERS, BITS, WIDTH, Sizes

NORM, NORM_FUSED, LAYER_NORM = 36.0, 4.0, 8.0  # torch's layer norm is one kernel, in fp32 under autocast
ROTARY, ROTARY_FUSED = 18.0, 4.0
GATED, GATED_FUSED = 10.0, 6.0
PLAIN, PLAIN_PYTHON = 4.0, 30.0  # one kernel, or tanh-GELU written out: power, two products, two sums, tanh, each read 2 write 2
RESIDUAL, RESIDUAL_FUSED = 12.0, 6.0  # two sums; Megatron's bias-dropout-add is one kernel
PERMUTED = 16.0  # tokens are gathered to their experts, and back with their weights: 2 + 2, 2 + 2, weight 4, sum 4
BACKWARD = 2.0
# An adapter reads a matrix's input and adds to its output (peft tuners/lora/layer.py, result + lora_B(lora_A(dropout(x))) * scaling).
ADAPTER_NARROW = (2.0, 12.0)  # 16 bits: read 2; product 2, scale 4, sum 6
ADAPTER_AUTOCAST = (14.0, 12.0)  # x.to(fp32) 2+4, autocast back 4+2, read 2; the rest in 16 bits
ADAPTER_WIDE = (10.0, 28.0)  # fp32 and no autocast: cast 2+4, read 4; product 4, scale 8, sum 10, back 6
ADAPTER_DROPOUT = 5.0  # read 2, write 2, mask 1
ADAPTER_BACKWARD = 1.5
DORA = 2.0  # the base's output is scaled again
# The column norms of the sum, in every forward pass, from matrices as large as the weight (peft tuners/lora/dora.py DoraLinearLayer.get_weight_norm and
# forward): an identity and B A written and read 2 x (2 + 2), scaled 4, added to the weight 6, the norm's fp32 copy and square 10.
DORA_NORMS = 28.0
MEGATRON = frozenset({"megatron-lm", "megatron-bridge", "nemo"})
FUSED = frozenset({"rmsnorm", "layernorm", "rope", "swiglu"})  # TransformerEngine and Megatron fuse these by default
LOSS = {"full-fp32": 40.0, "full": 24.0, "fused": 14.0, "vocab-parallel": 16.0, "chunked": 24.0, "fused-linear": 12.0}  # bytes a logit, forward and backward

# reads and writes of one element of (parameter, gradient, two states) in a step
STEP_ACCESSES = {"foreach": 18.0, "for-loop": 18.0, "fused": 7.0, "multi-tensor": 7.0}
STATES_MOVED = {"sgd": 0.0, "sgd-momentum": 0.4, "lion": 0.6, "muon": 0.6, "adafactor": 0.7}  # share of AdamW's traffic that remains


class Bytes(Struct, frozen=True):
    """Bytes moved: a micro-batch's element-wise kernels, its loss, its unpacking of quantised weights; and one optimizer step."""

    elementwise: float
    loss: float
    unpacking: float
    gathering: float  # copies into and out of the gather and reduce buffers (torch FSDP's all-gather copy-in and copy-out)
    step: float


def moved(s: Sizes, job: Job, owners: float) -> Bytes:
    """Bytes of one rank. ``owners``: over how many ranks the optimizer's work is divided."""
    again = recomputed(job)
    divided = s.pipeline
    kernels = FUSED if fused_throughout(job) else frozenset(job.activations.kernels or ())
    tensors = s.tensor if job.parallel.sequence else 1
    norms = 2 * s.hidden * (NORM_FUSED if ("layernorm" if s.layer_norm else "rmsnorm") in kernels else LAYER_NORM if s.layer_norm else NORM) / tensors
    rotary = (s.query_width + s.key_width) * (ROTARY_FUSED if "rope" in kernels else ROTARY) / s.tensor if s.rotary else 0.0
    plain = PLAIN_PYTHON if s.python_gelu and "swiglu" not in kernels else PLAIN
    mlp = s.mlp_width * ((GATED_FUSED if "swiglu" in kernels else GATED) if s.gated else plain) / s.tensor
    layer = (
        norms
        + rotary
        + mlp
        + s.hidden * (RESIDUAL_FUSED if fused_throughout(job) else RESIDUAL) / tensors
        + PERMUTED * s.hidden * s.chosen / max(s.layers, 1.0) / tensors
    )
    if job.activations.compile:
        layer *= shared().compiled
    if _wide_stream(s, job):
        layer *= shared().wide_stream
    forward = layer * s.layers * s.tokens
    elementwise = forward * (1 + again.elementwise + BACKWARD)
    if job.method.kind in ADAPTERS:
        elementwise += _adapters(s, job, compact="lora" in kernels) * (1 + again.dense + ADAPTER_BACKWARD)
        if job.method.kind == "dora":
            elementwise += DORA_NORMS * s.adapted_elements * (1 + again.dense) / s.tensor
    if job.activations.attention in ("eager", "te-unfused") or (s.capped and job.activations.attention == "sdpa"):
        scores = s.tokens * s.seq_len * s.query_width / max(s.query_width / 128, 1) / 128 * (s.query_width / 128)
        elementwise += scores * 16 * s.layers * (1 + again.attention + BACKWARD) / s.tensor
    loss = s.tokens * s.vocab * LOSS.get(job.activations.loss or "full-fp32", 40.0) / s.tensor
    if job.activations.compile:
        loss *= shared().compiled_loss
    held = s.tensor * s.pipeline
    return Bytes(elementwise / divided, loss / divided, _unpacking(s, job, again.dense) / held, _gathering(s, job) / held, _step(s, job) / max(owners, 1.0))


def fused_throughout(job: Job) -> bool:
    """Megatron's modelling code: norms, rotary embedding, activation and loss are fused kernels of TransformerEngine."""
    return job.framework.name in MEGATRON or job.model.source == "megatron"


def _wide_stream(s: Sizes, job: Job) -> bool:
    """Whether the residual stream is fp32.

    Prepared for k-bit training, or weights in fp32 under autocast; and torch's layer norm, which autocast runs in fp32, before a matrix of
    bitsandbytes, which answers in its input's dtype (bitsandbytes nn/modules.py Linear4bit.forward) where a plain one would answer in 16 bits.
    """
    kbit = job.method.kind in ADAPTERS and job.method.base not in (None, "none") and bool(job.method.kbit_preparation)
    mixed = job.precision.mixed
    normed = s.layer_norm and mixed in ("autocast", "fsdp") and job.method.base in ("nf4", "fp4", "int8")  # accelerate adds autocast to FSDP's own
    return kbit or normed or (job.precision.weights == "fp32" and mixed == "autocast")


def _adapters(s: Sizes, job: Job, *, compact: bool) -> float:
    """Bytes of all adapters' forward pass besides the products of the base."""
    if job.method.adapter_dtype in ("bf16", "fp16") or fused_throughout(job):
        inward, outward = ADAPTER_NARROW
    elif job.precision.mixed in ("autocast", "fsdp", "deepspeed", "megatron"):
        inward, outward = ADAPTER_AUTOCAST
    else:
        inward, outward = ADAPTER_WIDE
    if job.method.dropout:
        inward += ADAPTER_DROPOUT
    total = s.tokens * (inward * s.adapted_in + outward * s.adapted_out) / s.tensor
    if compact:
        total *= 0.5  # one kernel for the three products of an adapter: inputs are read once
    if job.activations.compile:
        total *= shared().compiled
    return total * (DORA if job.method.kind == "dora" else 1.0)


def _unpacking(s: Sizes, job: Job, again: float) -> float:
    """A packed weight is read and written out in 16 bits before each product: forward, recomputation, gradient of the input."""
    bits = BITS.get(job.method.base or "none")
    if bits is None:
        return 0.0
    return s.block_elements * (bits / 8 + 2) * (2 + again)


def _gathering(s: Sizes, job: Job) -> float:
    """Each gather is copied out of its buffer (2 + 2 bytes an element), each reduction copied in."""
    if job.parallel.strategy not in ("fsdp1", "fsdp2", "zero3", "megatron-fsdp") or (job.parallel.shard or 1) == 1:
        return 0.0
    bits = BITS.get(job.method.base or "none")
    gathers = 2.0 if job.parallel.reshard_after_forward is not False else 1.0
    return s.parameters * (bits / 4 if bits is not None else 4.0) * gathers + s.trained * 2 * WIDTH.get(job.precision.reduce or "bf16", 2)


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
