"""What is trained, and how the base is held."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft

WHOLE = frozenset({"megatron-lm", "torchtitan"})  # their trainers have no adapters: megatron/training/arguments.py, torchtitan config/job_config.py


def settle(draft: Draft) -> None:
    """``method.*``: the kind, the adapter and the base's layout."""
    _stored_layout(draft)
    base = draft.get("method.base")
    if base in family.QUANTISED:
        draft.infer("method.kind", "lora", f"a base held in {base} cannot be trained itself, so adapters are")
    if draft.known("method.rank") or draft.known("method.targets"):
        draft.infer("method.kind", "lora", "a rank or target modules are given, so adapters are trained")
    if draft.get("optimizer.name") == "galore-adamw":
        draft.infer("method.kind", "galore", "the optimizer projects gradients")
    others = () if draft.framework in WHOLE or draft.get("objective") == "pretrain" else ("lora",)
    draft.table("method.kind", alternatives=("full", *others) if others else ())
    draft.assume("method.kind", "full", "neither an adapter nor a quantised base was seen", alternatives=others)
    if draft.get("method.kind") in family.ADAPTERS:
        draft.table("method.base", alternatives=("none",))
    draft.default("method.base", "none", "every framework", "no quantisation was asked for")
    kind, base = draft.get("method.kind"), draft.get("method.base")
    if kind in family.ADAPTERS:
        draft.table("method.rank", alternatives=(16, 32, 64))
        draft.table("method.targets", alternatives=("all-linear", "qv"))
        draft.table("method.dropout", alternatives=(0.0,) if draft.framework == "trl" else ())  # a LoraConfig of one's own has none
        draft.table("method.modules_to_save", "method.adapters")
        _adapter(draft)
    if kind == "galore":
        draft.table("method.rank")
        draft.default("method.rank", 128, "transformers trainer_optimizer.py: GaLore's rank", alternatives=(64, 256, 1024))
    _quantised(draft, base)


_STORED = {"-awq-": "awq-int4", "-gptq-": "gptq-int4", "-bnb-4bit-": "nf4"}  # how those who publish quantised checkpoints name them


def _stored_layout(draft: Draft) -> None:
    """``method.base`` of a checkpoint whose name says that it is stored quantised: loading it asks for nothing more."""
    name = str(draft.get("model.name") or "").rstrip("/").rpartition("/")[2].lower().replace("_", "-")
    for mark, layout in _STORED.items():
        if mark in f"{name}-":
            draft.infer("method.base", layout, f"the checkpoint {draft.get('model.name')} is stored so, by its name")


def _adapter(draft: Draft) -> None:
    """What no table says of an adapter, and its dtype where the trainer casts it."""
    draft.assume("method.rank", 16, "no rank was seen", alternatives=(8, 32, 64))
    draft.assume("method.targets", "all-linear", "no target modules were seen", alternatives=("qv", "attention"))
    draft.default("method.dropout", 0.0, "every framework", "none asked for")
    draft.default("method.modules_to_save", (), "every framework", "none asked for")
    draft.default("method.adapters", 1, "every framework", "one adapter is trained")


def adapter_dtype(draft: Draft) -> None:
    """``method.adapter_dtype``: after the strategy and the compute dtype are settled, which may cast adapters."""
    if draft.get("method.kind") not in family.ADAPTERS:
        return
    compute, framework = draft.get("precision.compute"), draft.framework
    low = compute if compute in ("bf16", "fp16") else None
    if low and draft.get("precision.mixed") == "deepspeed":
        draft.infer("method.adapter_dtype", low, "DeepSpeed's engine casts every parameter of the module, adapters too, and steps fp32 masters")
    if framework in family.PURE or draft.get("precision.mixed") == "megatron":
        value = compute if compute in ("bf16", "fp16", "fp32") else draft.get("precision.weights")
        draft.infer("method.adapter_dtype", value, f"{framework or 'the trainer'} keeps adapters in the model's dtype")
    draft.table("method.adapter_dtype")
    draft.default("method.adapter_dtype", "fp32", "peft tuners_utils.py cast_adapter_dtype", "16-bit adapters are widened to fp32")


def _quantised(draft: Draft, base: str | None) -> None:
    if base in ("nf4", "fp4"):
        draft.table("method.double_quant", alternatives=(True, False))
        draft.assume("method.double_quant", False, "bitsandbytes' default", alternatives=(True,))
    if base in ("gptq-int4", "awq-int4"):
        draft.default("method.group_size", 128, "transformers quantization_config.py GPTQConfig, AwqConfig: group_size")
        draft.default("method.kbit_preparation", False, "peft utils/other.py prepare_model_for_kbit_training: not for GPTQ and AWQ")
    if base in family.QUANTISED and base not in ("fp8", "mxfp4"):
        draft.table("method.kbit_preparation", alternatives=(True, False))
        prepared = draft.framework in family.ACCELERATE | {"custom"}
        draft.assume(
            "method.kbit_preparation",
            prepared,
            "PEFT's prepare_model_for_kbit_training is part of the usual recipe"
            if prepared
            else f"{draft.framework or 'the trainer'} does not call PEFT's preparation",
            alternatives=(not prepared,),
        )
    draft.infer("method.kbit_preparation", False, "the base is not quantised")
