"""Bytes of an element by dtype name."""

from __future__ import annotations

from collections.abc import Mapping

BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "mxfp8": 1, "nvfp4": 1}


def bytes_of(dtype: str | None, default: int = 2) -> int:
    """Bytes of one element; ``default`` where the dtype is not known."""
    return BYTES.get(dtype, default) if dtype is not None else default
