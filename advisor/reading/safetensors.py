"""The header of a safetensors file: which tensors a checkpoint stores, in which dtypes. Only the header is read, never the tensors.

Format, from the safetensors crate (``safetensors/src/tensor.rs``): eight bytes little-endian, the header's length N (at most 100,000,000), then N bytes of
JSON: a name to ``dtype``, ``shape``, ``data_offsets`` for each tensor, and optionally ``__metadata__``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from advisor.evidence import Fact, Line
from advisor.units import show

if TYPE_CHECKING:
    from advisor.reading.configs.config_reading import ConfigReading

MAX_HEADER = 32 << 20  # bytes; a header of 100,000 tensors has about ten million
MAX_TENSORS = 300_000
_SPECIFIED = 100_000_000
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
         "F32": 32, "F64": 64, "I64": 64, "U64": 64}  # fmt: skip
_PACKED = (".qweight", ".weight_packed", ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", ".SCB", ".weight_scale_inv", "_blocks")


class HeaderError(ValueError):
    """A safetensors file whose header cannot be read; the message says why."""


def is_safetensors(name: str, head: bytes) -> bool:
    """Whether a file starts as a safetensors file does."""
    if len(head) < 9 or head[8:9] != b"{":
        return False
    length = int.from_bytes(head[:8], "little")
    return 2 <= length <= _SPECIFIED and (name.lower().endswith(".safetensors") or head[8:10] in (b'{"', b"{}"))


def header(chunks: Iterable[bytes]) -> Mapping[str, Any]:
    """The header as a mapping; of the chunks no more is taken than it needs.

    Raises:
        HeaderError: cut off, too long, no JSON.
    """
    held = bytearray()
    wanted = 8
    for chunk in chunks:
        held += chunk[: wanted - len(held)] if wanted > 8 else chunk[: MAX_HEADER + 8]
        if wanted == 8 and len(held) >= 8:
            length = int.from_bytes(held[:8], "little")
            if length > MAX_HEADER:
                raise HeaderError(f"a safetensors header of {length:,} bytes; at most {MAX_HEADER:,} are read")
            wanted = 8 + length
        if wanted > 8 and len(held) >= wanted:
            break
    if len(held) < wanted or wanted == 8:
        raise HeaderError(f"a safetensors file that is cut off within its header: {len(held):,} bytes are there")
    try:
        data = json.loads(bytes(held[8:wanted]))
    except (ValueError, RecursionError):
        raise HeaderError("a safetensors file whose header is no JSON") from None
    if not isinstance(data, dict):
        raise HeaderError("a safetensors file whose header names no tensors")
    if len(data) > MAX_TENSORS:
        raise HeaderError(f"a safetensors header with {len(data):,} tensors; at most {MAX_TENSORS:,} are read")
    return data


def reading_of(name: str, data: Mapping[str, Any]) -> tuple[ConfigReading, tuple[Line, ...]]:
    """Facts of a header, as the config readers give them for one that was pasted as JSON, and lines that say what is stored."""
    from advisor.reading.configs.model_config import read_safetensors

    found = read_safetensors(name, {k: v for k, v in data.items() if k != "__metadata__"})
    facts = [fact for fact in found.facts if fact.field != "method.base"]
    base = _base(data)
    if base is not None:
        facts = [Fact("method.base", base[0], "read", f"{name}:1", text=base[1]), *(f for f in facts if f.field != "load.dtype")]
    return replace(found, kind="safetensors header", facts=tuple(facts)), tuple(stored(name, data))


def _base(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """The packed layout, and by what it shows: names that the quantisers' own modules give their buffers.

    bitsandbytes ``nn/modules.py`` (quant_state.bitsandbytes__nf4, SCB), AutoGPTQ ``QuantLinear`` (qweight with g_idx), AutoAWQ ``WQLinear_GEMM`` (qweight
    without), transformers ``integrations/finegrained_fp8.py`` (weight_scale_inv), ``integrations/mxfp4.py`` (_blocks with _scales).
    """
    names = [str(key) for key in islice(data, MAX_TENSORS)]

    def ends(suffix: str) -> bool:
        return any(name.endswith(suffix) for name in names)

    for suffix, layout in ((".quant_state.bitsandbytes__nf4", "nf4"), (".quant_state.bitsandbytes__fp4", "fp4"), (".SCB", "int8")):
        if ends(suffix):
            return layout, f"tensors named *{suffix}"
    if ends(".qweight"):
        grouped = ends(".g_idx")
        return ("gptq-int4", "tensors named *.qweight and *.g_idx") if grouped else ("awq-int4", "tensors named *.qweight without *.g_idx")
    if ends("_blocks") and ends("_scales"):
        return "mxfp4", "tensors named *_blocks and *_scales"
    if ends(".weight_scale_inv") or any(isinstance(e, Mapping) and str(e.get("dtype", "")).startswith("F8_E4M3") for e in islice(data.values(), MAX_TENSORS)):
        return "fp8", "weights stored in F8_E4M3"
    return None


def stored(name: str, data: Mapping[str, Any]) -> Iterable[Line]:
    """``safetensors: 291 tensors hold 8,030,261,248 elements in BF16, 14.96 GiB`` for each dtype, and whether packed weights are among them."""
    where = f"{name}:1"
    sums: dict[str, tuple[int, int]] = {}
    packed = count = 0
    for key, entry in islice(data.items(), MAX_TENSORS):
        if not isinstance(entry, Mapping) or key == "__metadata__":
            continue
        count += 1
        packed += any(str(key).endswith(suffix) for suffix in _PACKED)
        dtype = str(entry.get("dtype"))[:12]
        number, elements = sums.get(dtype, (0, 0))
        sums[dtype] = number + 1, elements + _elements(entry.get("shape"))
    for dtype, (number, elements) in sorted(sums.items(), key=lambda item: -item[1][1])[:12]:
        size = show(elements * _BITS[dtype] // 8) if dtype in _BITS else "unknown size"
        yield Line(where, f"safetensors: {number:,} tensors hold {elements:,} elements in {dtype}, {size}")
    if count:
        yield Line(where, f"safetensors: {packed:,} of {count:,} tensors belong to packed or scaled weights")


def _elements(shape: Any) -> int:
    size = 1
    for side in shape if isinstance(shape, list) else ():
        size = min(size * (side if type(side) is int and 0 <= side < 1 << 40 else 0), 1 << 50)
    return size


def width_of_index(seen: Iterable[tuple[str, str, Any]], parameters: int) -> Fact | None:
    """The dtype that an index file implies: its ``total_size`` over the model's parameters, where that is close to 2 or 4 bytes an element."""
    where, total = next(((where, value) for where, key, value in seen if key == "safetensors total_size"), (None, None))
    if where is None or type(total) is not int or parameters <= 0:
        return None
    width = total / parameters
    for size, dtype in ((2, "bf16"), (4, "fp32")):
        if abs(width - size) <= 0.06 * size:  # tied tables stored twice and buffers move it a little
            why = f"total_size {total:,} over the model's {parameters:,} parameters is {width:.2f} bytes an element"
            alternatives = ("fp16",) if dtype == "bf16" else ()
            return Fact("load.dtype", dtype, "inferred", where, why, alternatives=alternatives)
    return None
