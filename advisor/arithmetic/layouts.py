"""Bytes of a quantised weight matrix in each layout, block constants included.

Sources: bitsandbytes functional.quantize_4bit (block 64; nested: absmax in 8 bit, its own fp32 absmax by 256); Int8Params (int8 + fp32
per output row); GPTQ and AWQ checkpoints of transformers (fp16 scale and 4-bit zero a group, GPTQ with a 32-bit group index an input row;
group size -1: one group over all inputs); OCP microscaling formats v1.0 (one 8-bit scale a block of 32).
"""

from __future__ import annotations

BNB_BLOCK = 64
BNB_NESTED_BLOCK = 256
MX_BLOCK = 32
DEFAULT_GROUP = 128
NF4_CODE_BYTES = 16 * 4 + 256 * 4  # the code tables of a matrix: 16 fp32 levels, and 256 of the nested state


def packed(layout: str, elements: int) -> int:
    """Bytes of the payload alone: what a sharded flat parameter divides."""
    if layout in ("nf4", "fp4", "gptq-int4", "awq-int4", "mxfp4"):
        return -(-elements // 2)
    return elements if layout in ("int8", "fp8") else 2 * elements


def constants(layout: str, rows: int, columns: int, *, double_quant: bool, group: int) -> int:
    """Bytes of scales, zeros and code tables of one ``rows x columns`` matrix: kept whole on every rank by FSDP."""
    elements = rows * columns
    if layout in ("nf4", "fp4"):
        blocks = -(-elements // BNB_BLOCK)
        if double_quant:
            return blocks + 4 * -(-blocks // BNB_NESTED_BLOCK) + NF4_CODE_BYTES
        return 4 * blocks + 16 * 4
    if layout == "int8":
        return 4 * rows
    if layout in ("gptq-int4", "awq-int4"):
        groups = 1 if group < 0 else -(-columns // group)
        index = 4 * columns if layout == "gptq-int4" else 0
        return groups * rows * 2 + groups * -(-rows // 2) + index
    if layout == "mxfp4":
        return -(-elements // MX_BLOCK)
    if layout == "fp8":
        return 4
    return 0


def stored(layout: str, rows: int, columns: int, *, double_quant: bool = True, group: int = DEFAULT_GROUP) -> int:
    """All bytes of one quantised matrix."""
    return packed(layout, rows * columns) + constants(layout, rows, columns, double_quant=double_quant, group=group)
