"""Adapters: what LoRA and DoRA keep beside a linear layer (peft tuners/lora/layer.py, bnb.py, dora.py)."""

from __future__ import annotations

from advisor.arithmetic.blocks.operations import QUANTISED_4BIT, cast, dropout
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Size, Tape, Value


def adapter(tape: Tape, s: Setting, x: Value, y: Value, name: str, out: float, copies: float = 1.0, experts: float = 1.0) -> Value:
    """``result + lora_B(lora_A(dropout(x))) * scaling``.

    The input is cast to the adapter's dtype for each module apart (peft ``_cast_input_dtype``), so q, k and v each keep their own copy;
    under autocast the cast is to the compute dtype. A 4-bit base clones its result first (peft bnb.py).
    """
    with tape.naming(x):
        return _adapter(tape, s, x, y, name, out, copies, experts)


def _adapter(tape: Tape, s: Setting, x: Value, y: Value, name: str, out: float, copies: float, experts: float) -> Value:
    if s.base in QUANTISED_4BIT:
        y = tape.run(f"{name} clone", (y,), y.width, y.element, shares=True, label=f"{name} output")
    inner = x
    quantised_autocast = s.autocast and s.base in (*QUANTISED_4BIT, "int8")
    fused = "lora" in s.fused  # unsloth fast_lora.py: adapters are cast to the input's dtype, and q, k and v share one input
    if not quantised_autocast and not fused:  # peft bnb.py converts only without autocast; layer.py always
        inner = cast(tape, x, s.adapter, f"{name} adapter input")
    named = inner  # ``x`` of peft's forward, to its end
    inner = dropout(tape, s, inner, s.dropout, f"{name} adapter")
    element = s.compute if s.autocast or fused else s.adapter
    inner = cast(tape, inner, element, f"{name} adapter input")
    low = tape.run(
        f"{name} lora_A", (inner,), s.rank * copies, element, saves=(inner,), weights=inner.width / copies * s.rank * experts, label=f"{name} lora_A output"
    )
    with tape.naming(named):
        if s.dora:
            return _dora(tape, s, inner, low, y, name, out, element)
        return _low_rank(tape, s, low, y, name, out, copies, experts, element)


def _low_rank(tape: Tape, s: Setting, low: Value, y: Value, name: str, out: float, copies: float, experts: float, element: int) -> Value:
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
    """DoRA: magnitude over weight norm, times base result and adapter result, both of which stay for the magnitude's gradient.

    The weight norm is made anew in each training forward by pushing an identity matrix of the input width through both adapters. It is
    detached, so nothing of that stays: identity, product, scaled product and their sum with the weight live for the moment
    (peft tuners/lora/dora.py DoraLinearLayer.forward; checked by running it).
    """
    n, m = inner.width, out
    norm: Size = (0.0, 0.0, (n * n + 3 * n * m) * element + (n * m * element if s.weight != element or s.base != "none" else 0), 0.0)
    held: Size = (0.0, 0.0, (n * n + n * m) * element, 0.0)
    low = tape.run(f"{name} weight norm", (low,), low.width, low.element, view=True, forward=norm, label=f"{name} lora_A output")
    high = tape.run(f"{name} lora_B", (low,), out, element, saves=(low,), weights=s.rank * out, forward=held, label=f"{name} lora_B output")
    if s.dropout > 0:  # the base result is made again from the input after dropout
        whole: Size = (0.0, 0.0, 0.0, n * m * s.compute if s.base != "none" else 0.0)
        base_in = tape.run(f"{name} base again", (inner,), out, element, backward=whole, label=f"{name} base result after dropout")
    else:
        base_in = y
    one = tape.run(
        f"{name} magnitude x base",
        (base_in,),
        out,
        base_in.element,
        saves=(base_in,),
        weights=out,
        backward=_tokens(out * base_in.element),
        label=f"{name} base part",
    )
    two = tape.run(
        f"{name} magnitude x adapter", (high,), out, element, saves=(high,), weights=0.0, backward=_tokens(out * element), label=f"{name} adapter part"
    )
    scaled = tape.run(f"{name} scaling", (two,), out, element, label=f"{name} adapter output")
    wide = max(one.element, element)
    both = tape.run(f"{name} DoRA sum", (one, scaled), out, wide, shares=one.element == element, label=f"{name} DoRA output")
    summed = tape.run(f"{name} sum", (y, both), out, max(y.element, wide), shares=y.element == wide, label=f"{name} output")
    return cast(tape, summed, y.element, f"{name} output")


def _tokens(bytes_a_token: float) -> Size:
    return (bytes_a_token, 0.0, 0.0, 0.0)
