"""Dtypes: what the framework makes of the model's dtype and of a mixed-precision switch."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft


def settle(draft: Draft) -> None:
    """``precision.*``."""
    weights, framework = draft.get("precision.weights"), draft.framework
    if weights in ("bf16", "fp16"):
        draft.infer("precision.compute", weights, f"the weights are held in {weights}")
    draft.assume("precision.compute", "bf16", "usual on cards since Ampere", alternatives=("fp32", "fp16"))
    compute = draft.get("precision.compute")
    low = compute if compute in ("bf16", "fp16") else "bf16"
    strategy = draft.get("parallel.strategy")
    if compute == "fp32":
        draft.infer("precision.weights", "fp32", "computing in fp32 needs fp32 weights")
        draft.infer("precision.mixed", "none", "nothing is computed below fp32")
    elif strategy in family.ZERO:
        draft.infer("precision.weights", low, "DeepSpeed holds the model in its 16-bit dtype")
        draft.infer("precision.mixed", "deepspeed", "DeepSpeed keeps fp32 masters beside 16-bit weights")
    elif framework in family.MEGATRON or strategy in family.MEGATRON_STRATEGIES:
        draft.infer("precision.weights", low, "Megatron holds the model in its 16-bit dtype")
        draft.infer("precision.mixed", "megatron", "Megatron keeps fp32 masters beside 16-bit weights")
    elif strategy in family.SHARDED_BY_FSDP:
        if draft.get("precision.weights") == low and framework in ("torchtune", "litgpt"):
            draft.infer("precision.mixed", "none", f"{framework} in {low} shards and steps the {low} weights")
        draft.infer("precision.mixed", "fsdp", "FSDP casts its shards to the compute dtype when it gathers them")
        draft.infer(
            "precision.weights", "fp32" if draft.get("method.kind") == "full" else low, "accelerate widens trainable shards to fp32 under mixed precision"
        )
    elif framework in ("torchtune", "litgpt"):
        draft.infer("precision.mixed", "none", f"{framework} trains in the weights' own dtype")
        draft.infer("precision.weights", low, f"{framework} dtype {low}")
    else:
        draft.infer("precision.mixed", "autocast", f"a {compute} switch is autocast over the weights as loaded")
        draft.assume("precision.weights", low, "the checkpoint's dtype", alternatives=("fp32",))
    mixed, weights = draft.get("precision.mixed"), draft.get("precision.weights")
    draft.infer("precision.master", "fp32" if mixed in ("deepspeed", "megatron") and weights != "fp32" else "none", f"mixed precision by {mixed}")
    if mixed == "megatron":
        draft.infer("precision.gradients", "fp32", "Megatron's main gradients are fp32")
    draft.infer("precision.gradients", weights, "a gradient has its parameter's dtype")
    draft.infer(
        "precision.reduce", "fp32" if mixed == "fsdp" and framework in ("torchtitan", "verl") else draft.get("precision.gradients"), "the gradients' dtype"
    )
