"""What is trained, and how the base is held."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft

_LORA = ("lora", "dora")


def settle(draft: Draft) -> None:
    """``method.*``: the kind, the adapter and the base's layout."""
    framework = draft.framework
    base = draft.get("method.base")
    if framework == "llama-factory":
        draft.default("method.kind", "lora", "LLaMA-Factory hparams/finetuning_args.py finetuning_type")
    if base not in (None, "none"):
        draft.infer("method.kind", "lora", f"a base held in {base} cannot be trained itself, so adapters are")
    if draft.get("method.rank") is not None or draft.get("method.targets") is not None:
        draft.infer("method.kind", "lora", "a rank or target modules are given, so adapters are trained")
    draft.assume("method.kind", "full", "neither an adapter nor a quantised base was seen", alternatives=("lora",))
    draft.default("method.base", "none", "every framework", "no quantisation was asked for")
    kind, base = draft.get("method.kind"), draft.get("method.base")
    if kind in _LORA:
        _adapter(draft)
    if kind == "galore":
        draft.default("method.rank", 128, "transformers optim_args of GaLore (galore_torch)")
    if base in ("nf4", "fp4"):
        hf = framework in family.PEFT
        double = framework in ("llama-factory", "axolotl", "unsloth")
        draft.default("method.double_quant", double, f"{framework or 'bitsandbytes'}: BitsAndBytesConfig bnb_4bit_use_double_quant", alternatives=(not double,))
        prepared = hf and framework not in ("axolotl",)
        draft.assume("method.kbit_preparation", prepared, "PEFT's prepare_model_for_kbit_training is part of the usual recipe", alternatives=(not prepared,))
    elif base == "int8":
        draft.assume("method.kbit_preparation", framework in family.PEFT, "PEFT's preparation is part of the usual recipe", alternatives=(False,))
    elif base in ("gptq-int4", "awq-int4"):
        draft.default("method.group_size", 128, "transformers GPTQConfig / AwqConfig group_size")
        draft.default("method.kbit_preparation", False, "peft utils/other.py prepare_model_for_kbit_training: not for GPTQ")
    else:
        draft.infer("method.kbit_preparation", False, "the base is not quantised")


def _adapter(draft: Draft) -> None:
    framework = draft.framework
    rank, targets = {"llama-factory": (8, "all-linear"), "unsloth": (16, "all-linear"), "trl": (16, "qv")}.get(framework or "", (8, "qv"))
    draft.default("method.rank", rank, f"{framework or 'peft'}: LoraConfig r", alternatives=(16, 32, 64))
    draft.default("method.targets", targets, f"{framework or 'peft'}: target_modules", alternatives=("all-linear", "qv"))
    draft.default("method.dropout", 0.0, "peft LoraConfig lora_dropout")
    draft.default("method.adapters", 1, "one adapter is trained")
    draft.default("method.modules_to_save", (), "peft LoraConfig modules_to_save")
    if framework in ("torchtune", "litgpt", "megatron-lm", "megatron-bridge", "nemo"):
        draft.infer("method.adapter_dtype", "bf16", f"{framework} keeps adapters in the model's dtype")
    else:
        draft.default("method.adapter_dtype", "fp32", "peft autocast_adapter_dtype=True", "16-bit adapters are widened to fp32")
