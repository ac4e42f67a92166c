"""Dtypes that are wider than was asked for, or than the job needs."""

from __future__ import annotations

from typing import Any

from advisor.program import of_run
from advisor.run import Run
from advisor.techniques.conditions import DIVIDED_PARAMETERS, SCRIPTED, card_lacks, framework_lacks, not_nvidia, trains_adapters
from advisor.techniques.curing import cured, extra, ineffective, widened
from advisor.techniques.technique import Flags, NotApplicable, technique

FROZEN = frozenset({"lora", "dora"})
MASTER_KEEPERS = frozenset({"deepspeed", "megatron"})  # engines that keep an fp32 master of their own beside 16-bit weights


def _sixteen(run: Run) -> str:
    return "fp16" if card_lacks(run, "bf16") else "bf16"


def _frozen_only(before: Run, after: Run) -> Flags:
    """A frozen base in its checkpoint's 16 bits loses nothing; trained weights in 16 bits lose small updates."""
    meant = before.job.precision.weights == after.job.precision.weights  # only a deviation was taken away
    return Flags(exact=meant, alters_learning=not meant and before.job.method.kind not in FROZEN)


@technique("load-in-16-bit", tier="fallback", exact=False, flags=_frozen_only)
def load_in_16_bit(run: Run) -> Run | NotApplicable:
    """Load the weights in the checkpoint's 16-bit dtype instead of fp32."""
    job = run.job
    freed = cured(run, "default-fp32-load", also=lambda d: widened("precision.weights", "load.dtype")(d) and d.cause in (None, "default-fp32-load"))
    if job.precision.weights != "fp32":
        return freed or NotApplicable(f"the weights are held in {job.precision.weights or 'a dtype that is not known'}, not in fp32")
    if job.parallel.strategy in DIVIDED_PARAMETERS and not trains_adapters(run) and job.precision.mixed == "fsdp":
        return freed or NotApplicable(
            "FSDP's mixed precision keeps trained shards in fp32 whatever dtype was loaded; keep-wrapper-narrow or smaller states are what helps"
        )
    narrow = _sixteen(run)
    precision: dict[str, Any] = {"weights": narrow}
    changes: dict[str, Any] = {"precision": precision}
    if not trains_adapters(run):
        if job.precision.gradients == "fp32" and job.precision.mixed not in MASTER_KEEPERS:
            precision["gradients"] = narrow
        if job.precision.master in (None, "none") and job.optimizer.states == "fp32" and job.precision.mixed not in MASTER_KEEPERS:
            changes["optimizer"] = {"states": narrow}  # torch's optimizers keep states in the parameter's dtype
    if job.load is not None and job.load.dtype == "fp32":
        changes["load"] = {"dtype": narrow}
    return (freed or run).but(**changes)


@technique("keep-kbit-narrow", tier="fallback", exact=False)
def keep_kbit_narrow(run: Run) -> Run | NotApplicable:
    """Leave embedding, head and norms in 16 bits: skip ``prepare_model_for_kbit_training``'s widening."""
    freed = cured(run, "kbit-upcast")
    method = run.job.method
    if method.kbit_preparation and method.base not in (None, "none"):
        if freed is None and (reason := framework_lacks(run, SCRIPTED | {"ms-swift"}, "the preparation for k-bit training: it widens as it does")):
            return NotApplicable(reason)
        return (freed or run).but(method={"kbit_preparation": False})
    return freed or NotApplicable("no preparation for k-bit training has widened what is not quantised")


@technique("keep-wrapper-narrow", tier="fallback", exact=False)
def keep_wrapper_narrow(run: Run) -> Run | NotApplicable:
    """Keep the wrapper from widening: adapters, and a frozen base under FSDP's mixed precision, stay in 16 bits."""
    job = run.job
    freed = cured(run, "framework-upcast", also=widened("method.adapter_dtype"))
    if not trains_adapters(run):
        return freed or NotApplicable("nothing but trained weights is widened, and those need their fp32 copy")
    changes: dict[str, Any] = {}
    if freed is not None and job.method.adapter_dtype == "fp32":
        changes["method"] = {"adapter_dtype": _sixteen(run)}
    if job.precision.weights == "fp32" and job.precision.mixed == "fsdp":
        changes["precision"] = {"weights": _sixteen(run)}
    if not changes:
        return freed or NotApplicable("the wrapper has widened nothing")
    return (freed or run).but(**changes)


@technique("apply-quantization", tier="fallback")
def apply_quantization(run: Run) -> Run | NotApplicable:
    """Make the quantisation that was asked for take hold: a layer type, kernel or card that is supported."""
    freed = cured(run, "quantization-not-applied", also=ineffective("method.base"))
    if freed is not None:
        return freed
    return NotApplicable("no quantisation was asked for" if run.job.method.base in (None, "none") else "the quantisation is in effect as far as can be told")


@technique("drop-fp8", tier="fallback", exact=False)
def drop_fp8(run: Run) -> Run | NotApplicable:
    """Compute in bf16: FP8's caches and transposes go, and with them what FP8 did not save."""
    freed = cured(run, "fp8-not-smaller")
    if run.job.precision.compute not in ("fp8", "mxfp8", "nvfp4"):
        return freed or NotApplicable("the job does not compute in FP8")
    return (freed or run).but(precision={"compute": "bf16", "fp8_recipe": None})


@technique("isolate-widening", tier="fallback")
def isolate_widening(run: Run) -> Run | NotApplicable:
    """Keep the wide dtype to the step that needs it, rather than widening a whole tensor or model ahead of it."""
    freed = cured(run, "framework-upcast", "kernel-unsupported", "optimizer-temporary", "quantization-not-applied", also=lambda d: d.kind == "widened")
    return freed or NotApplicable("nothing was found to be widened beyond the step that needs it")


@technique("bounded-shapes", tier="fallback", exact=True, estimated=False)
def bounded_shapes(run: Run) -> Run | NotApplicable:
    """Pad to a few lengths, so that few shapes are compiled, captured and cached."""
    if of_run(run).images:
        return NotApplicable("the model is fed images: there is no sequence of tokens to pad", settled=True)
    return cured(run, "graph-pools", "fragmentation") or run


@technique("empty-cache", tier="fallback", estimated=False)
def empty_cache(run: Run) -> Run | NotApplicable:
    """Hand cached blocks back before a phase whose memory is not torch's (NCCL, an engine), at the cost of asking for them again."""
    return cured(run, "fragmentation", "communication-buffers", also=extra("allocator")) or run


@technique("expandable-segments", tier="fallback")
def expandable_segments(run: Run) -> Run | NotApplicable:
    """Let the allocator grow segments in place, so that free memory does not split into blocks that are too small."""
    from advisor.techniques.conditions import allocator_with, is_skyrl, older, on_windows, sleeping_engine

    allocator = run.job.framework.allocator or {}
    freed = cured(run, "fragmentation")
    if allocator.get("expandable_segments") is True and freed is None:
        return NotApplicable("expandable segments are on already")
    # verl turns them off before its engine wakes (utils/device.py set_expandable_segments); SkyRL's trainers have them to themselves: its engines are
    # actors, so processes, of their own (ppo_base_config.yaml trainer.use_expandable_segments)
    if sleeping_engine(run) and run.job.framework.name != "verl" and not is_skyrl(run):
        return NotApplicable("vLLM's sleep mode brings an allocator of its own (cumem), which refuses expandable segments")
    if run.job.framework.cuda_graphs:
        return NotApplicable("captured CUDA graphs hold their pool at fixed addresses; expandable segments with graphs were not safe in every release")
    if (unsupported := on_windows(run, "expandable segments")) is not None:
        return NotApplicable(unsupported, settled=True)
    reason = not_nvidia(run, "expandable_segments") or older(run, "torch", (2, 1))
    if reason:
        return NotApplicable(reason)
    return (freed or run).but(framework={"allocator": allocator_with(run, expandable_segments=True)})
