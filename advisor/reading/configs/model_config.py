"""A model's ``config.json``, a LoRA adapter's, and the headers and indexes of safetensors files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from advisor.evidence import Fact, NotUnderstood
from advisor.reading.configs.config_reading import ConfigReading

_SHAPE_KEYS = frozenset({"hidden_size", "d_model", "n_embd", "text_config", "architectures", "num_hidden_layers", "dim"})
_QUANTISED = (
    (".quant_state.bitsandbytes__nf4", "nf4"),
    (".quant_state.bitsandbytes__fp4", "fp4"),
    (".SCB", "int8"),
    (".qweight", "gptq-int4"),
    (".weight_scale_inv", "fp8"),
    ("_blocks", "mxfp4"),
)
_METHODS = {"gptq": "gptq-int4", "awq": "awq-int4", "fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "compressed-tensors": None}
_ST_DTYPES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}


def is_model(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face model's config."""
    return "model_type" in data and bool(_SHAPE_KEYS & data.keys()) and "base_model" not in data


def read_model(name: str, data: Mapping[str, Any]) -> ConfigReading:
    """``model.config``, and the layout that the checkpoint is stored in."""
    from advisor.architecture import ConfigError, read

    where = f"{name}:1"
    facts = [Fact("model.config", dict(data), "read", where=where, text=f"model_type {data['model_type']}")]
    refused: list[NotUnderstood] = []
    label = data.get("_name_or_path")
    if isinstance(label, str) and "/" in label and not label.startswith((".", "/")):
        facts.append(Fact("model.name", label[:300], "read", where=where, text=f"_name_or_path {label[:200]}"))
    try:
        read(data)
    except ConfigError as error:
        refused.append(NotUnderstood(where, f"model_type {data['model_type']}", str(error)))
    quantised = data.get("quantization_config")
    if isinstance(quantised, Mapping) and (base := _layout(quantised)) is not None:
        facts.append(Fact("method.base", base, "read", where=where, text=f"quantization_config {quantised.get('quant_method')}"))
        group = quantised.get("group_size")
        if isinstance(group, int) and (group == -1 or 1 <= group <= 65_536) and base in ("gptq-int4", "awq-int4"):
            facts.append(Fact("method.group_size", group, "read", where=where))
        if base in ("nf4", "fp4"):
            facts.append(Fact("method.double_quant", bool(quantised.get("bnb_4bit_use_double_quant")), "read", where=where))
    seen = tuple((where, key, data[key]) for key in ("model_type", "torch_dtype", "dtype", "use_cache", "quantization_config") if key in data)
    return ConfigReading("model config.json", None, tuple(facts), seen, tuple(refused))


def read_cut(name: str, data: Mapping[str, Any]) -> ConfigReading:
    """A config whose end is missing: the model's name and layout, not its shape, whose missing sizes would be taken for the class's defaults."""
    whole = read_model(name, data)
    return replace(whole, facts=tuple(fact for fact in whole.facts if fact.field != "model.config"), not_understood=())


def _layout(config: Mapping[str, Any]) -> str | None:
    method = str(config.get("quant_method", "")).lower()
    if method == "bitsandbytes" or "load_in_4bit" in config:
        if config.get("load_in_4bit"):
            return "nf4" if str(config.get("bnb_4bit_quant_type", "fp4")).lower() == "nf4" else "fp4"
        return "int8" if config.get("load_in_8bit") else None
    return _METHODS.get(method)


def is_safetensors(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is an index or a header of safetensors."""
    return "weight_map" in data or (len(data) > 1 and all(isinstance(v, Mapping) and ("dtype" in v or k == "__metadata__") for k, v in list(data.items())[:50]))


def read_safetensors(name: str, data: Mapping[str, Any]) -> ConfigReading:
    """Which dtypes a checkpoint is stored in, and whether it is really quantised."""
    where = f"{name}:1"
    tensors = data["weight_map"] if isinstance(data.get("weight_map"), Mapping) else data
    facts = []
    base = next((layout for suffix, layout in _QUANTISED if any(str(key).endswith(suffix) for key in tensors)), None)
    if base is not None:
        facts.append(Fact("method.base", base, "read", where=where, text=f"tensors named *{next(s for s, layout in _QUANTISED if layout == base)}"))
    elements: Counter[str] = Counter()
    for entry in tensors.values():
        if isinstance(entry, Mapping) and isinstance(entry.get("shape"), list):
            size = 1
            for side in entry["shape"]:
                size *= side if isinstance(side, int) and 0 <= side < 1 << 40 else 0
            elements[str(entry.get("dtype"))] += min(size, 1 << 50)
    if elements and base is None and (most := elements.most_common(1)[0])[0] in _ST_DTYPES:
        facts.append(Fact("load.dtype", _ST_DTYPES[most[0]], "inferred", where=where, why=f"{most[1]:,} elements are stored in {most[0]}"))
    seen: list[tuple[str, str, Any]] = [(where, f"safetensors {dtype} elements", count) for dtype, count in elements.items()]
    if isinstance(data.get("metadata"), Mapping) and "total_size" in data["metadata"]:
        seen.append((where, "safetensors total_size", data["metadata"]["total_size"]))
    return ConfigReading("safetensors index" if "weight_map" in data else "safetensors header", None, tuple(facts), tuple(seen))
