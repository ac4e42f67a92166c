"""What is kept for the backward pass, and the phases beside the training step."""

from __future__ import annotations

from advisor.resolving import family, liger
from advisor.resolving.draft import Draft, interned

# apply_liger_kernel_to_* (liger_kernel/transformers/monkey_patch.py) has rope, rms_norm and the gated MLP on wherever a loss is fused; the model's own
# code never fuses it. axolotl (cut_cross_entropy) and verl (use_fused_kernels) have a fused loss of its own, so nothing follows there.
ONE_FLAG = frozenset({"hf-trainer", "trl", "llama-factory", "ms-swift"})
# Their own model code names the kernel (torchtitan models/attention.py, torchtune modules/attention_utils.py, litgpt model.py, Transformer Engine's backend,
# unsloth models/llama.py), or they pass attn_implementation to a loader that raises where it cannot be had (verl workers, openrlhf --ds.attn_implementation).
DECIDES = frozenset({"torchtitan", "torchtune", "litgpt", "megatron-lm", "megatron-bridge", "unsloth", "verl", "openrlhf"})
BROUGHT = ("rmsnorm", "swiglu", "rope")


def settle(draft: Draft) -> None:
    """``activations.*``, ``framework.*``, and the optional sections that are used."""
    draft.table("activations.checkpointing", alternatives=("none", "full"))
    draft.assume("activations.checkpointing", "none", "no framework turns it on by itself", alternatives=("full",))
    draft.table("offload.activations")  # Unsloth's checkpointing moves what it keeps to the host unless told otherwise
    draft.default("offload.activations", "none", "every framework", "offloading is off unless asked for")
    if draft.framework == "trl" and draft.get("parallel.strategy") == "zero3" and draft.get("method.kind") in family.ADAPTERS:
        draft.infer("activations.reentrant", True, "trl sft_trainer.py: adapters under ZeRO-3 force reentrant checkpointing")
    draft.table("activations.reentrant")
    draft.default("activations.reentrant", False, "torch checkpoint: non-reentrant is what libraries ask for")
    draft.table("activations.attention", alternatives=() if draft.framework in DECIDES else ("sdpa", "eager", "flash-2"))
    draft.default("activations.attention", "sdpa", "transformers modeling_utils.py", alternatives=("eager", "flash-2"))
    if (alone := liger.only_kernels(draft)) is not None:
        draft.reopen("activations.loss")
    draft.table("activations.loss", alternatives=("full-fp32", "fused-linear"))
    draft.default("activations.loss", "full-fp32", "transformers loss/loss_utils.py")
    if alone is not None:
        settled = draft.facts["activations.loss"]
        draft.facts["activations.loss"] = interned("activations.loss", settled.value, settled.kind, settled.where, alone)
    loss = draft.facts.get("activations.loss")
    if draft.framework in ONE_FLAG and loss is not None and loss.kind in ("stated", "read") and loss.value in ("fused", "fused-linear"):
        draft.infer("activations.kernels", BROUGHT, "the loss is fused, and in this stack what fuses it (Liger's patch of a model) fuses these as well")
    draft.table("activations.kernels")
    draft.default("activations.kernels", (), "every framework", "no fused kernels asked for")
    draft.table("activations.compile", "activations.sequence_packing")
    draft.default("activations.compile", False, "every framework", "not asked for")
    draft.default("activations.sequence_packing", "padded", "every framework", "not asked for")
    draft.table("framework.use_cache")
    draft.default("framework.use_cache", False, "transformers: off in training")
    draft.table("framework.keeps_outputs")
    draft.default("framework.keeps_outputs", False, "every framework", "nothing was seen that holds the outputs")
    draft.default("framework.cuda_graphs", False, "every framework", "not asked for")
    _phases(draft)


def _phases(draft: Draft) -> None:
    """Sections that the job uses; the others stay absent."""
    if draft.has("load"):
        zero3 = draft.get("parallel.strategy") == "zero3"
        draft.assume("load.materialise", "meta" if zero3 and draft.framework in family.ACCELERATE else "every-rank", "as the trainer usually loads")
        draft.infer("load.dtype", draft.get("precision.weights"), "as the weights are held")
        draft.default("load.move_before_sharding", False, "every framework", "not seen")
        if draft.get("method.base") in ("nf4", "fp4", "int8"):
            draft.default("load.quantize_on", "device", "transformers quantizers: bitsandbytes quantises each tensor on the device")
    if draft.has("eval"):
        draft.table("eval.micro_batch", "eval.accumulate", "eval.keeps")
        draft.assume("eval.micro_batch", draft.get("batch.micro_batch"), "as in training")
        draft.assume("eval.accumulate", "device", "predictions stay on the device", alternatives=("nothing",))
        draft.assume("eval.keeps", "logits", "nothing reduces the predictions", alternatives=("loss",))
        draft.infer("eval.loss", draft.get("activations.loss"), "as in training")
    if draft.has("save"):
        adapters = draft.get("method.kind") in family.ADAPTERS
        draft.assume("save.format", "adapters" if adapters else "full", "as the trainer usually saves")
        draft.assume("save.gather", "rank-0" if draft.get("parallel.strategy") in family.FSDP | {"zero3"} else "none", "as the trainer usually saves")
        draft.assume("save.to_host", True, "gathered tensors go to the host one by one", alternatives=(False,))
        draft.default("save.merge", "none", "every framework", "adapters are not merged")
    if draft.has("resume"):
        draft.assume("resume.map", "host", "checkpoints are read to the host", alternatives=("device",))
