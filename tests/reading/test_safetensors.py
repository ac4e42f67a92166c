"""Headers of safetensors files: what is stored, whether it is really quantised; only the header is read."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from advisor.reading import Reading, read
from advisor.reading.safetensors import HeaderError, header, is_safetensors


def file(tensors: dict[str, tuple[str, list[int]]], rest: bytes = b"\0" * 64) -> bytes:
    """A file with the header of these tensors; offsets are not checked by readers of headers."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    entries |= {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + rest


def lines(reading: Reading) -> list[str]:
    return [line.text for line in reading.evidence.lines if line.text.startswith("safetensors")]


LAYER = "model.layers.0.mlp.up_proj"


def test_a_plain_checkpoint_says_its_dtypes() -> None:
    data = file({f"{LAYER}.weight": ("BF16", [4096, 1024]), "norm.weight": ("F32", [1024])})
    reading = read([("model.safetensors", data)])
    assert lines(reading) == [
        "safetensors: 1 tensors hold 4,194,304 elements in BF16, 8 MiB",
        "safetensors: 1 tensors hold 1,024 elements in F32, 4 KiB",
        "safetensors: 0 of 2 tensors belong to packed or scaled weights",
    ]
    assert reading.job.get("load.dtype") == "bf16"
    assert reading.job.method.base is None
    assert ("model.safetensors:1", "safetensors BF16 elements", 4_194_304) in reading.evidence.seen_keys


@pytest.mark.parametrize(
    ("names", "base"),
    [
        ({".weight": ("U8", [2048, 1]), ".weight.quant_state.bitsandbytes__nf4": ("U8", [80]), ".weight.absmax": ("U8", [64])}, "nf4"),
        ({".weight": ("U8", [2048, 1]), ".weight.quant_state.bitsandbytes__fp4": ("U8", [80])}, "fp4"),
        ({".weight": ("I8", [64, 64]), ".SCB": ("F32", [64])}, "int8"),
        ({".qweight": ("I32", [512, 1024]), ".qzeros": ("I32", [32, 128]), ".scales": ("F16", [32, 1024]), ".g_idx": ("I32", [4096])}, "gptq-int4"),
        ({".qweight": ("I32", [4096, 128]), ".qzeros": ("I32", [32, 128]), ".scales": ("F16", [32, 1024])}, "awq-int4"),
        ({".weight": ("F8_E4M3", [64, 64]), ".weight_scale_inv": ("F32", [1, 1])}, "fp8"),
        ({"_blocks": ("U8", [8, 64, 2, 16]), "_scales": ("U8", [8, 64, 2])}, "mxfp4"),
    ],
)
def test_packed_layouts_are_told_by_their_tensors(names: dict[str, tuple[str, list[int]]], base: str) -> None:
    reading = read([("model-00001-of-00002.safetensors", file({LAYER + suffix: value for suffix, value in names.items()}))])
    assert reading.job.method.base == base
    fact = reading.evidence.fact("method.base")
    assert fact is not None
    assert fact.kind == "read"


def test_only_the_header_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as out:
        out.write(file({f"{LAYER}.weight": ("BF16", [64, 64])}))
        out.seek(3 << 30)  # a sparse file of 3 GiB: more than is read of all texts together
        out.write(b"\0")
    (tmp_path / "log.txt").write_text("Memory stats after model init:\n\tGPU peak memory allocation: 16.96 GiB\n")
    reading = read([("model.safetensors", path), ("log.txt", tmp_path / "log.txt")])
    assert lines(reading)
    assert reading.evidence.samples, "the log is still read"


def test_an_index_says_its_width_by_the_model() -> None:
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": 32000, "tie_word_embeddings": False,
    }  # fmt: skip
    parameters = 2 * 32000 * 1024 + 4 * (4 * 1024**2 + 3 * 4096 * 1024 + 2 * 1024) + 1024
    for width, dtype in ((2, "bf16"), (4, "fp32")):
        index = {"metadata": {"total_size": parameters * width}, "weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
        reading = read([("config.json", json.dumps(config)), ("model.safetensors.index.json", json.dumps(index))])
        fact = reading.evidence.fact("load.dtype")
        assert fact is not None
        assert (fact.value, fact.kind) == (dtype, "inferred")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack("<Q", 90_000_000) + b'{"a"', "at most"),
        (struct.pack("<Q", 4000) + b'{"a": 1', "cut off"),
        (struct.pack("<Q", 8) + b'{"a": 1 ', "no JSON"),
    ],
)
def test_broken_headers_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(HeaderError, match=says):
        header([data])
    assert read([("m.safetensors", data)]).state == "unreadable"


def test_text_is_no_header() -> None:
    assert not is_safetensors("a.json", b'{"a": 1, {"b')
    assert not is_safetensors("a.safetensors", b"version 1\n{")
