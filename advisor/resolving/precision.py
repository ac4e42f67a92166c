"""Dtypes: what the framework makes of the dtype that the weights are loaded in, and of a mixed-precision switch."""

from __future__ import annotations

from typing import Any

from advisor.architecture import presets
from advisor.frameworks.derive import AS_LOADED
from advisor.resolving import family, method
from advisor.resolving.draft import Draft

_LOW = ("bf16", "fp16")


def settle(draft: Draft) -> None:
    """``precision.*``, and the adapter's dtype, which follows."""
    loaded = _loaded(draft)
    _compute(draft, loaded)
    _masters_and_weights(draft, loaded)
    mixed, weights = draft.get("precision.mixed"), draft.get("precision.weights")
    if draft.get("parallel.strategy") in family.ZERO and mixed == "none" and weights in _LOW:
        # deepspeed runtime/zero/stage_1_and_2.py single_partition_of_fp32_groups, stage3.py _create_fp32_partitions: whatever the trainer calls it
        draft.infer("precision.master", "fp32", f"ZeRO steps an fp32 copy of {weights} weights, pure {weights} training or not")
    draft.infer("precision.master", "fp32" if mixed in ("deepspeed", "megatron") and weights != "fp32" else "none", f"mixed precision by {mixed}")
    if mixed == "megatron":
        draft.table("precision.gradients")
        draft.infer("precision.gradients", "fp32", "Megatron's main gradients are fp32 beside bf16 weights")
    draft.infer("precision.gradients", weights, "a gradient has its parameter's dtype")
    _reduce(draft, mixed)
    if draft.get("precision.compute") in ("fp8", "mxfp8"):
        draft.table("precision.fp8_recipe")
        draft.assume(
            "precision.fp8_recipe", "mxfp8" if draft.get("precision.compute") == "mxfp8" else "tensorwise", "no recipe was named", alternatives=("delayed",)
        )
    method.adapter_dtype(draft)


def _loaded(draft: Draft) -> str | None:
    """The dtype of the weights as they come from the checkpoint, where anything says it. A fact that only repeats the load is set aside."""
    fact = draft.facts.get("precision.weights")
    if fact is not None and fact.kind == "inferred" and fact.why == AS_LOADED:
        draft.reopen("precision.weights")
        return str(fact.value)
    weights = draft.get("precision.weights")
    return str(draft.get("load.dtype") or weights) if draft.get("load.dtype") or weights else None


def _compute(draft: Draft, loaded: str | None) -> None:
    weights = draft.get("precision.weights")
    if draft.get("precision.mixed") == "none" and (loaded or weights):
        draft.infer("precision.compute", loaded or weights, "without mixed precision the weights' dtype is computed in")
    if weights in _LOW:
        draft.infer("precision.compute", weights, f"the weights are held in {weights}")
    if draft.get("precision.mixed") == "none" and draft.framework in family.HF_LOADED and draft.get("parallel.strategy") not in family.ZERO:
        value, why, _ = _load_default(draft, "fp16" if _without_bf16(draft) else "bf16")
        draft.settle("precision.compute", value, "assumed", f"without mixed precision the weights' dtype is computed in: {why}")
    draft.table("precision.compute", alternatives=("bf16", "fp16", "fp32"))
    if loaded in _LOW:
        draft.infer("precision.compute", loaded, f"the weights are loaded in {loaded}")
    if draft.known("precision.compute"):
        return
    if _without_bf16(draft):
        draft.assume("precision.compute", "fp16", "the card has no bf16", alternatives=("fp32",))
    draft.assume("precision.compute", "bf16", "usual on cards since Ampere", alternatives=("fp32", "fp16"))


def _without_bf16(draft: Draft) -> bool:
    gpu = draft.get("hardware.gpu")
    if not isinstance(gpu, str):
        return False
    from advisor import cards

    card = cards.find(gpu)
    return card is not None and card.sm is not None and card.sm < 80 and card.vendor.lower() == "nvidia"


def _masters_and_weights(draft: Draft, loaded: str | None) -> None:
    compute, framework, strategy = draft.get("precision.compute"), draft.framework, draft.get("parallel.strategy")
    low = compute if compute in _LOW else "bf16"
    full = draft.get("method.kind") not in family.ADAPTERS
    if compute == "fp32":
        draft.infer("precision.mixed", "none", "nothing is computed below fp32")
        draft.infer("precision.weights", "fp32", "computing in fp32 needs fp32 weights")
    elif framework in family.MEGATRON or strategy in family.MEGATRON_STRATEGIES:
        draft.infer("precision.mixed", "megatron", "Megatron keeps fp32 masters beside 16-bit weights")
        draft.infer("precision.weights", low, "Megatron holds the model in its 16-bit dtype")
    elif strategy in family.ZERO:
        draft.infer("precision.mixed", "deepspeed", "DeepSpeed keeps fp32 masters beside 16-bit weights")
        draft.infer("precision.weights", low, "DeepSpeed holds the model in its 16-bit dtype")
    elif framework in family.PURE:
        _pure(draft, low)
    elif strategy in family.FSDP:
        _fsdp(draft, loaded, low, full)
    else:
        _autocast(draft, loaded, low, full)


def _pure(draft: Draft, low: str) -> None:
    weights = draft.get("precision.weights")
    if weights == "fp32":
        draft.infer("precision.mixed", "autocast", "fp32 weights and a 16-bit compute dtype")
    draft.infer("precision.mixed", "none", f"{draft.framework} trains in the weights' own dtype")
    draft.infer("precision.weights", low, f"{draft.framework} casts the whole model to {low}")


def _fsdp(draft: Draft, loaded: str | None, low: str, full: bool) -> None:
    framework = draft.framework
    draft.table("precision.weights", "precision.reduce")
    weights = draft.get("precision.weights")
    if framework not in family.ACCELERATE and framework not in ("verl", "torchtitan", "llm-foundry", "nemo") and (weights or loaded) in _LOW:
        draft.infer("precision.mixed", "none", f"{weights or loaded} weights are sharded, gathered and stepped as they are")
        draft.infer("precision.weights", weights or loaded, "as loaded")
        return
    draft.infer("precision.mixed", "fsdp", "FSDP casts its shards to the compute dtype when it gathers them")
    if framework in family.ACCELERATE and full:
        place = "fsdp_utils.py fsdp2_prepare_model" if draft.get("parallel.strategy") == "fsdp2" else "accelerator.py"
        draft.infer("precision.weights", "fp32", f"accelerate {place} widens trained shards to fp32")
    if full or loaded or framework not in family.ACCELERATE:
        draft.infer("precision.weights", "fp32" if full else loaded or low, "fp32 shards are stepped" if full else "frozen weights stay as loaded")
        return
    value, why, others = _load_default(draft, low)
    draft.settle("precision.weights", value, "default", why, where=framework, alternatives=others)


def _autocast(draft: Draft, loaded: str | None, low: str, full: bool) -> None:
    framework, compute = draft.framework, draft.get("precision.compute")
    weights = draft.get("precision.weights")
    if framework == "llama-factory" and full and draft.get("precision.mixed") != "none":
        draft.infer("precision.weights", "fp32", "LLaMA-Factory casts trained parameters to fp32 unless pure_bf16 (model/adapter.py)")
    if framework in (None, "custom", "openrlhf") and (weights or loaded) in _LOW and compute in _LOW:
        draft.infer("precision.mixed", "none", f"the weights are {weights or loaded} already")
    draft.infer("precision.mixed", "autocast", f"a {compute} switch is autocast over the weights as they are held")
    if loaded is not None:
        draft.infer("precision.weights", loaded, AS_LOADED)
        return
    value, why, others = _load_default(draft, low)
    draft.settle("precision.weights", value, "default" if framework in family.HF_LOADED else "assumed", why, where=framework or None, alternatives=others)


def _load_default(draft: Draft, low: str) -> tuple[str, str, tuple[Any, ...]]:
    """What ``from_pretrained`` gives where no dtype is named: by framework and version."""
    framework = draft.framework
    if framework in ("axolotl", "llama-factory", "unsloth", "ms-swift", "openrlhf"):
        return low, f"{framework} loads in the compute dtype", ()
    if draft.get("method.base") in family.QUANTISED:
        return low, "what is not quantised is held in the 16-bit dtype", ("fp32",)
    checkpoint = _checkpoint_dtype(draft)
    if framework == "trl" and (draft.major_minor("trl") or (0, 0)) >= (0, 27):
        return "fp32", "a model given as a name is loaded in fp32 (trl trainer/utils.py create_model_from_path)", (checkpoint or low,)
    older = draft.older("transformers", "5")
    if older:
        shown = f"; the failure's own text leaves only transformers {draft.shown('transformers')} possible" if draft.major_minor("transformers") is None else ""
        return "fp32", f"from_pretrained without a dtype loads fp32 before transformers 5{shown}", (checkpoint or low,)
    why = "from_pretrained without a dtype keeps the checkpoint's from transformers 5 on; before, it loads fp32"
    if checkpoint is not None and presets.checkpoint_dtype_recalled(draft.get("model.name")):
        why += f" (that this checkpoint is {checkpoint} is recalled, not read)"
    return checkpoint or low, why, () if older is not None else ("fp32",)


def _checkpoint_dtype(draft: Draft) -> str | None:
    config = draft.get("model.config")
    stored = str((config or {}).get("dtype") or (config or {}).get("torch_dtype") or "").removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(stored) or presets.checkpoint_dtype(draft.get("model.name"))


def _reduce(draft: Draft, mixed: str | None) -> None:
    draft.table("precision.reduce")
    if mixed == "fsdp" and draft.framework in family.ACCELERATE:
        low = draft.get("precision.compute")
        draft.infer("precision.reduce", low if low in _LOW else "fp32", "accelerate utils/dataclasses.py set_mixed_precision: reduce_dtype is the compute one")
    if (draft.get("parallel.strategy") or "").startswith("zero") and draft.get("parallel.context_kind") == "ulysses":
        why = "deepspeed runtime/engine.py: with sequence ranks the communication is in seq_parallel_communication_data_type, fp32 unless set"
        draft.infer("precision.reduce", "fp32", why)
    draft.infer("precision.reduce", draft.get("precision.gradients"), "gradients are reduced in their own dtype")
