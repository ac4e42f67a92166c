"""How weights come in, and what a file's name says of DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import SILENT, count, dtype, flag
from advisor.frameworks.derive.derivation import RANK_KEY
from advisor.job import Job

_STAGE = re.compile(r"(?:zero|stage|ds_?z|(?<![a-z])z)[-_]?([0-3])(?!\d)", re.IGNORECASE)


def deepspeed_file(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The name of a DeepSpeed config that was not given: ``ds_z3_offload_config.json``, ``zero2.json``, ms-swift's ``zero3``."""
    value = next((v for v in raw.values() if isinstance(v, str)), None)
    if value is None or (match := _STAGE.search(value.rsplit("/", 1)[-1])) is None:
        return {}
    stage = int(match.group(1))
    found: dict[str, Any] = {"parallel.strategy": f"zero{stage}" if stage else "ddp"}
    if "offload" in value.lower():
        found["offload.optimizer"] = "cpu"
        if stage == 3:
            found["offload.parameters"] = "cpu"
    return found


def write_deepspeed_example(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The one of LLaMA-Factory's example configs that divides so: examples/deepspeed/ds_z3_config.json. There is none for stage 1: a file of one's own."""
    strategy, offload = wanted.get("parallel.strategy"), after.offload
    if strategy not in ("zero1", "zero2", "zero3"):
        return {}
    away = offload.optimizer == "cpu" and (strategy == "zero2" or offload.parameters == "cpu")
    name = f"ds_z{strategy[-1]}{'_offload' if away and strategy != 'zero1' else ''}_config.json"
    return {RANK_KEY: name if strategy == "zero1" else f"examples/deepspeed/{name}"}


def load_dtype(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``from_pretrained(dtype=...)``: how the weights come in, and how they are held unless something widens them."""
    value = dtype(next(iter(raw.values())))
    return {} if value is SILENT else {"load.dtype": value, "precision.weights": value}


def write_load_dtype(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    """The dtype by its long name."""
    value = wanted.get("load.dtype") or wanted.get("precision.weights")
    return {} if value is None else {RANK_KEY: {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[value]}


def swift_dtype(raw: Mapping[str, Any]) -> dict[str, Any]:
    """ms-swift loads in this dtype and, unless fp16 or bf16 say otherwise, computes in it."""
    value = dtype(next(iter(raw.values())))
    return {} if value is SILENT else {"load.dtype": value, "precision.weights": value, "precision.compute": value}


def expandable(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A framework's own switch for expandable segments."""
    return {"framework.allocator": {"expandable_segments": flag(next(iter(raw.values())))}}


def classification_head(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``model.classes``: the class in a script, or ms-swift's ``task_type``, says that a classifier is trained; two labels unless told."""
    if raw.get("model_head") != "classification" and str(raw.get("task_type") or "") != "seq_cls":
        return {}
    labels = raw.get("num_labels")
    return {"model.classes": count(labels) if isinstance(labels, int) or str(labels).isdigit() else 2}


def given_reference(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A reference model that the script builds and passes is resident; ``None`` leaves the choice to the trainer."""
    return {"reference": "copy"} if raw.get("ref_model") else {}


def bitsandbytes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``BitsAndBytesConfig``: 4-bit is fp4 unless the type says nf4; both switches off say that nothing is quantised here."""
    four, eight = (raw.get(key) is not None and flag(raw[key]) for key in ("load_in_4bit", "load_in_8bit"))
    if four:
        return {"method.base": "nf4" if str(raw.get("bnb_4bit_quant_type") or "fp4").lower() == "nf4" else "fp4"}
    return {"method.base": "int8"} if eight else {}


def write_bitsandbytes(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The switch, the type, and the dtype of the products, which would be fp32 and slow."""
    base = wanted.get("method.base")
    if base == "int8":
        return {"load_in_8bit": True}
    if base not in ("nf4", "fp4"):
        return {}
    compute = {"bf16": "bfloat16", "fp16": "float16"}.get(after.precision.compute or "bf16")
    return {"load_in_4bit": True, "bnb_4bit_quant_type": base, **({"bnb_4bit_compute_dtype": compute} if compute else {})}
