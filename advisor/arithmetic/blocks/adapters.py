"""Adapters: what LoRA and DoRA keep beside a linear layer (peft tuners/lora/layer.py, bnb.py, dora.py)."""

from __future__ import annotations

from advisor.arithmetic.blocks.operations import QUANTISED_4BIT, cast, dropout
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Size, Tape, Value


def adapter(tape: Tape, s: Setting, x: Value, y: Value, name: str, out: float, copies: float = 1.0, experts: float = 1.0) -> Value:
    """``result + lora_B(lora_A(dropout(x))) * scaling``.

    The input is cast to the adapter's dtype for each module apart (peft ``_cast_input_dtype``), so q, k and v each keep their own copy;
    under autocast the cast is to the compute dtype. A 4-bit base clones its result first (peft bnb.py).
    """
    if s.base in QUANTISED_4BIT:
        y = tape.run(f"{name} clone", (y,), y.width, y.element, shares=True, label=f"{name} output")
    inner = x
    quantised_autocast = s.autocast and s.base in (*QUANTISED_4BIT, "int8")
    if not quantised_autocast:  # peft bnb.py converts only without autocast; layer.py always
        inner = cast(tape, x, s.adapter, f"{name} adapter input")
    inner = dropout(tape, s, inner, s.dropout, f"{name} adapter")
    element = s.compute if s.autocast else s.adapter
    inner = cast(tape, inner, element, f"{name} adapter input")
    low = tape.run(
        f"{name} lora_A", (inner,), s.rank * copies, element, saves=(inner,), weights=inner.width / copies * s.rank * experts, label=f"{name} lora_A output"
    )
    if s.dora:
        return _dora(tape, s, inner, low, y, name, out, element)
    high = tape.run(f"{name} lora_B", (low,), out, element, saves=(low,), weights=s.rank * out / copies * experts, label=f"{name} lora_B output")
    scaled = tape.run(f"{name} scaling", (high,), out, element, label=f"{name} adapter output")
    if s.base != "none" and not s.autocast:
        scaled = cast(tape, scaled, y.element)
    total = max(y.element, scaled.element)
    same = y.element == scaled.element
    summed = tape.run(f"{name} sum", (y, scaled), out, total, shares=same, label=f"{name} output")
    if s.base == "none":  # peft layer.py: result.to(torch_result_dtype)
        summed = cast(tape, summed, y.element, f"{name} output")
    return summed


def _dora(tape: Tape, s: Setting, inner: Value, low: Value, y: Value, name: str, out: float, element: int) -> Value:
    """DoRA: an identity matrix of the input width, pushed through both adapters for the weight norm, is kept for the backward pass.

    The norm itself is detached; ``mag_norm_scale`` multiplies the sum, which saves base result and adapter result (peft dora.py).
    """
    eye: Size = (0.0, 0.0, inner.width * inner.width * element, 0.0)
    product: Size = (0.0, 0.0, inner.width * out * element, 0.0)
    keeps = ((f"{name} DoRA identity", element, eye), (f"{name} DoRA identity x A", element, (0.0, 0.0, inner.width * s.rank * element, 0.0)))
    wide: Size = (0.0, 0.0, inner.width * out * max(s.weight, element), 0.0)
    high = tape.run(
        f"{name} lora_B",
        (low,),
        out,
        element,
        saves=(low,),
        keeps=keeps,
        weights=s.rank * out,
        forward=(0, 0, product[2] + wide[2], 0),
        label=f"{name} lora_B output",
    )
    scaled = tape.run(f"{name} magnitude x adapter", (high,), out, element, saves=(high,), weights=out, backward=NOTHING, label=f"{name} adapter output")
    base = tape.run(f"{name} magnitude x base", (y,), out, y.element, saves=(y,), weights=0.0, label=f"{name} DoRA base output")
    summed = tape.run(f"{name} sum", (base, scaled), out, max(y.element, element), shares=y.element == element, label=f"{name} output")
    return cast(tape, summed, y.element, f"{name} output")
