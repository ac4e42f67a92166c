"""The dense MLP of a block: gated or plain."""

from __future__ import annotations

from advisor.architecture import Block
from advisor.arithmetic.blocks.operations import cast, dropout, linear, parts, tokens
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Tape, Value


def mlp(tape: Tape, s: Setting, block: Block, x: Value, hidden: float) -> Value:
    """From the normed input, which the module's caller names to its end, to the down projection."""
    with tape.naming(x):
        return _mlp(tape, s, block, x, hidden)


def _mlp(tape: Tape, s: Setting, block: Block, x: Value, hidden: float) -> Value:
    width = block.mlp_width / s.tensor
    names = [t.name for t in block.tensors if t.role == "mlp" and len(t.shape) == 2]
    down = names[-1] if names else "down_proj"
    if block.gated and "lora" in s.fused and len(names) == 3 and s.adapted.issuperset(names):
        return _fast_lora(tape, s, x, hidden, width)
    if block.gated:
        inner = gated(tape, s, x, names, width, cut=block.cut)
    else:
        up = linear(tape, s, x, names[0] if names else "fc1", width)
        inner = activate(tape, s, up)
    y = linear(tape, s, dropout(tape, s, inner, s.inner_dropout, "MLP inner"), down, hidden)
    return dropout(tape, s, y, s.hidden_dropout, "MLP output")


def _fast_lora(tape: Tape, s: Setting, x: Value, hidden: float, width: float) -> Value:
    """Unsloth's LoRA_MLP (kernels/fast_lora.py): one function that keeps input, gate and up; the product is made anew in backward.

    Its backward makes one gradient of the MLP's width and writes the others over what it kept.
    """
    e = s.compute
    keeps = (("gate_proj output", e, tokens(e * width)), ("up_proj output", e, tokens(e * width)))
    whole = (0.0, 0.0, 0.0, x.width * width * e if s.base != "none" else 0.0)
    adapters = 3 * s.rank * (hidden + width)
    temp = (e * width, 0.0, 0.0, whole[3])
    return tape.run("fused LoRA MLP", (x,), hidden, x.element, saves=(x,), keeps=keeps, forward=temp, backward=temp, weights=adapters, label="MLP output")


def gated(tape: Tape, s: Setting, x: Value, names: list[str], width: float, *, copies: float = 1.0, experts: float = 1.0, cut: bool = False) -> Value:
    """``act(gate(x)) * up(x)``: autograd keeps gate, act(gate), up, and, where the down projection reads it, the product.

    Fused SwiGLU (liger ops/swiglu.py) keeps gate and up only and writes their gradients in place.
    """
    if len(names) == 2:  # one fused matrix: gate and up are views of its output
        both = linear(tape, s, x, names[0], 2 * width, copies=copies, experts=experts)
        gate, up = parts(tape, both, (("gate", width), ("up", width)))
    else:
        gate = linear(tape, s, x, names[0] if names else "gate_proj", width, copies=copies, experts=experts)
        up = linear(tape, s, x, names[1] if names else "up_proj", width, copies=copies, experts=experts)
    if s.activation == "clamped":
        return clamped(tape, gate, up, width)
    if "swiglu" in s.fused:
        return tape.run("swiglu", (gate, up), width, gate.element, saves=(gate, up), reuses=True, label="gated product")
    if cut:  # modeling_gemma3n _gaussian_topk: the deviation reads the gate, relu and what follows read the same output
        above = tape.run("gate less its cut", (gate,), width, gate.element, saves=(gate,), backward=tokens(2 * width * gate.element), label="gate less its cut")
        gate = tape.run("gate relu", (above,), width, gate.element, saves_output=True, label="gate above its cut")
    act = activate(tape, s, gate)
    return tape.run("gate product", (act, up), width, max(act.element, up.element), saves=(act, up), label="gated product")


def clamped(tape: Tape, gate: Value, up: Value, width: float) -> Value:
    """``(clamp(up) + 1) * clamp(gate) * sigmoid(alpha * clamp(gate))`` (modeling_gpt_oss GptOssExperts): each product keeps both its factors."""
    e = gate.element
    gate = tape.run("gate clamp", (gate,), width, e, saves=(gate,), label="clamped gate")
    up = tape.run("up clamp", (up,), width, e, saves=(up,), label="clamped up")
    scaled = tape.run("gate alpha", (gate,), width, e, label="scaled gate")
    soft = tape.run("gate sigmoid", (scaled,), width, e, saves_output=True, label="gate sigmoid")
    glu = tape.run("gate product", (gate, soft), width, e, saves=(gate, soft), label="activation output")
    more = tape.run("up plus one", (up,), width, e, shares=True, label="up plus one")
    return tape.run("gated product", (more, glu), width, e, saves=(more, glu), label="gated product")


def xielu(tape: Tape, x: Value, *, trained: bool) -> Value:
    """xIELU in Python (transformers activations.XIELUActivation, without its CUDA wheel): both branches of a ``where`` are made and keep what they read.

    What the two alphas multiply is kept for their own gradients, where they train.
    """
    e, one = x.element, tokens(x.width * x.element)
    scaled = tape.run("xielu alpha x", (x,), x.width, e, saves=(x,) if trained else (), backward=one, label="alpha x")
    square = tape.run("xielu square", (scaled, x), x.width, e, saves=(scaled, x), label="alpha x²")
    above = tape.run("xielu positive", (square, x), x.width, e, forward=one, label="positive branch")
    least = tape.run("xielu least", (x,), x.width, e, saves=(x,), label="least of x and epsilon")
    grown = tape.run("xielu expm1", (least,), x.width, e, saves_output=True, label="expm1")
    less = tape.run("xielu less", (grown, x), x.width, e, label="expm1 less x")
    below = tape.run("xielu negative", (less, x), x.width, e, saves=(less,) if trained else (), forward=one, backward=one, label="negative branch")
    chosen = ("where x is positive", 1, tokens(x.width))
    return tape.run("xielu where", (above, below), x.width, e, keeps=(chosen,), label="activation output")


def activate(tape: Tape, s: Setting, x: Value) -> Value:
    """The activation function: silu, gelu and relu² keep their input (relu its output); gelu written out in Python keeps four tensors.

    Compiled, the written-out one is a pointwise kernel that backward runs anew from its input, as the operation's own backward does
    (torch _functorch/partitioners.py min_cut_rematerialization_partition: what a product reads in backward is kept, what is fused is not).
    """
    one = x.width * x.element
    name = s.activation
    if name in ("gelu_new", "gelu_fast") and not s.compiled:
        base = cast(tape, x, 4, "gelu input as fp32") if s.autocast else x  # autocast runs pow in fp32, and what follows is widened by it
        wide, one = base.element, x.width * base.element
        cube = tape.run("gelu pow", (base,), x.width, wide, saves=(base,), backward=tokens(2 * one), label="gelu cube")
        inner = tape.run("gelu inner", (x, cube), x.width, wide, forward=tokens(one), label="gelu inner")
        tanh = tape.run("gelu tanh", (inner,), x.width, wide, saves_output=True, label="gelu tanh")
        shifted = tape.run("gelu one plus", (tanh,), x.width, wide, shares=True, label="1 + tanh")
        half = tape.run("gelu half", (x,), x.width, x.element, label="x / 2")
        return tape.run("gelu product", (half, shifted), x.width, wide, saves=(half, shifted), label="activation output")
    if name == "xielu in Python" and not s.compiled:
        return xielu(tape, x, trained=s.trained)
    if name == "quick_gelu" and not s.compiled:  # transformers activations.QuickGELUActivation
        soft = tape.run("gelu sigmoid", (x,), x.width, x.element, saves_output=True, forward=tokens(one), label="gelu sigmoid")
        return tape.run("gelu product", (x, soft), x.width, x.element, saves=(x, soft), label="activation output")
    if name == "gelu by hand":  # modeling_bloom GeLUFunction: keeps its input; its backward is written out, four tensors beside its result
        return tape.run("activation", (x,), x.width, x.element, saves=(x,), forward=tokens(2 * one), backward=tokens(4 * one), label="activation output")
    if name == "relu2":
        r = tape.run("relu", (x,), x.width, x.element, saves_output=True, label="relu output")
        power = tokens(one if s.compiled else 2 * one)  # pow_backward: the power below, and what the exponent makes of it
        return tape.run("square", (r,), x.width, x.element, saves=(r,), backward=power, label="activation output")
    if name == "relu":
        return tape.run("relu", (x,), x.width, x.element, saves_output=True, label="activation output")
    return tape.run("activation", (x,), x.width, x.element, saves=(x,), label="activation output")
