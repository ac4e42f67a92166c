"""Kernels that were asked for and not used."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.conditions import OPTIMIZERS, card_lacks, framework_lacks, trains_adapters
from advisor.techniques.curing import cured, extra, ineffective
from advisor.techniques.technique import Flags, NotApplicable, technique

SCORES = frozenset({"eager", "te-unfused"})
FUSED_NAMES = frozenset({"adamw", "sgd", "sgd-momentum"})  # torch.optim with fused=True: Adam, AdamW, SGD, Adagrad
FLASH_HEAD = 256  # flash-attention 2 and PyTorch's flash kernel


def _fused_kernel(run: Run) -> str | NotApplicable:
    """The fused attention that this card, dtype and model can use."""
    architecture, compute = run.architecture, run.job.precision.compute
    widest = max((b.head_dim for b in architecture.blocks), default=0) if architecture is not None else 0
    flash = card_lacks(run, "flash_2")
    if architecture is not None and architecture.softcap_attention:
        if flash or widest > FLASH_HEAD:
            return NotApplicable(
                f"{architecture.model_type} caps its attention scores, and only FlashAttention 2.6 or later fuses that; {flash or 'its heads are too wide'}"
            )
        return "flash-2"
    if compute == "bf16" and card_lacks(run, "bf16"):
        return NotApplicable(f"{card_lacks(run, 'bf16_tensor')}: in bfloat16 every fused kernel falls back to the score matrix there; compute in fp16 first")
    return "sdpa"


def _in_fp16(run: Run) -> Run | NotApplicable:
    """Compute in fp16 where the card has no bf16: there SDPA's memory-efficient kernel runs, and in bf16 none does (pytorch sdp_utils.cpp)."""
    precision, changes = run.job.precision, dict[str, Any]()
    narrow: dict[str, Any] = {"compute": "fp16"}
    if precision.weights == "bf16":
        if not trains_adapters(run) and precision.master != "fp32":
            return NotApplicable("fp16 needs fp32 weights or masters to step (its gradients are scaled), and the weights are trained in bf16 alone")
        narrow["weights"] = "fp16"
        if run.job.load is not None and run.job.load.dtype == "bf16":
            changes["load"] = {"dtype": "fp16"}
    return run.but(precision=narrow, **changes)


def _same_dtype(before: Run, after: Run) -> Flags:
    """Another kernel is exact up to rounding; another dtype is not."""
    return Flags(exact=before.job.precision.compute == after.job.precision.compute, alters_learning=False)


@technique("restore-flash-attention", tier="fallback", flags=_same_dtype)
def restore_flash_attention(run: Run) -> Run | NotApplicable:
    """Use a fused attention kernel, which never writes the [seq_len, seq_len] scores."""
    freed = cured(run, "attention-fallback", also=lambda d: ineffective("activations.attention")(d) or extra("attention")(d))
    attention = run.job.activations.attention
    capped = run.architecture is not None and bool(run.architecture.softcap_attention) and attention == "sdpa"  # SDPA has no cap: scores are written out
    scores = attention in SCORES or capped
    emulated = attention == "sdpa" and not capped and run.job.precision.compute == "bf16" and card_lacks(run, "bf16") is not None
    if not scores and freed is None and not emulated:
        return NotApplicable(f"attention runs fused already ({attention or 'as far as can be told'})")
    if emulated:
        return _in_fp16(freed or run)
    kernel = _fused_kernel(run)
    if isinstance(kernel, NotApplicable):
        return kernel
    if scores:
        return (freed or run).but(activations={"attention": "te-fused" if attention == "te-unfused" else kernel})
    if freed is not None and attention == "sdpa" and not card_lacks(run, "flash_2"):
        return freed.but(activations={"attention": "flash-2"})  # SDPA fell back because of what it was given: ask for the kernel itself, which fails loudly
    return freed or run


@technique("restore-fused-loss", tier="fallback")
def restore_fused_loss(run: Run) -> Run | NotApplicable:
    """Make the fused or chunked loss that is configured take hold, in evaluation too."""
    freed = cured(run, "loss-fallback", also=ineffective("activations.loss"))
    job = run.job
    if job.eval is not None and job.activations.loss in ("fused-linear", "chunked") and job.eval.loss in ("full-fp32", "full", "fused"):
        return (freed or run).but(eval={"loss": job.activations.loss})
    return freed or NotApplicable("the loss runs in the form that is configured")


@technique("fused-optimizer", tier="fallback")
def fused_optimizer(run: Run) -> Run | NotApplicable:
    """One kernel for the step, without the parameter-sized temporaries of the foreach implementation."""
    freed = cured(run, "optimizer-temporary")
    optimizer, parallel = run.job.optimizer, run.job.parallel
    if optimizer.name not in FUSED_NAMES:
        return freed or NotApplicable(f"the optimizer {optimizer.name or 'is not known and'} has no fused form in torch.optim")
    if optimizer.implementation == "fused" and freed is None:
        return NotApplicable("the step runs fused already")
    if optimizer.implementation == "multi-tensor" and freed is None:
        return NotApplicable("the step runs in fused multi-tensor kernels already")
    if run.job.offload.optimizer in ("cpu", "nvme") or parallel.strategy in ("megatron", "megatron-distributed", "megatron-fsdp"):
        return freed or NotApplicable("the step is the engine's own, not torch.optim's")
    if freed is None and (reason := framework_lacks(run, (OPTIMIZERS | {"torchtitan"}) - {"litgpt", "llm-foundry"}, "how the optimizer steps")):
        return NotApplicable(reason)
    return (freed or run).but(optimizer={"implementation": "fused"})
