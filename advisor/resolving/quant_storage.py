"""The dtype that bitsandbytes packs 4-bit weights in: FSDP divides them only where it is a float dtype, and flattens only one dtype."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.job import Job

BYTES = "uint8"  # transformers BitsAndBytesConfig.bnb_4bit_quant_storage where nothing is said
_NAMES = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp32": "fp32",
    "uint8": BYTES,
    "int8": "int8",
}
_OF_BNB = frozenset({"bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant"})


def quant_storage(job: Job, evidence: Evidence | None) -> tuple[str, str] | None:
    """(dtype, where from); ``None`` where the base is not in 4 bit, or nothing tells how it is packed.

    Sources: transformers 5.24 BitsAndBytesConfig (uint8 unless given); axolotl 0.19 loaders/model.py (bfloat16); LLaMA-Factory 0.9.5
    model/model_utils/quantization.py (the compute dtype); fsdp_qlora train.py (bf16).
    """
    if job.method.base not in ("nf4", "fp4"):
        return None
    keys = evidence.seen_keys if evidence is not None else ()
    for where, key, value in keys:
        if key.rpartition(".")[2] == "bnb_4bit_quant_storage" and value is not None:
            name = _NAMES.get(str(value).lower().removeprefix("torch."))
            return (name, where) if name else None
    framework = job.framework.name
    if framework in ("axolotl", "fsdp-qlora"):
        return "bf16", f"{framework} packs it so"
    if framework == "llama-factory":
        return (job.precision.compute, "llama-factory packs it in the compute dtype") if job.precision.compute in ("bf16", "fp16", "fp32") else None
    given = next((where for where, key, _ in keys if key.rpartition(".")[2] in _OF_BNB), None)
    return (BYTES, f"{given}: BitsAndBytesConfig packs bytes unless told") if given and framework not in ("unsloth", "ms-swift") else None
