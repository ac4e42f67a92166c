"""The operations of modelling code, each with what its backward formula reads (torch/autograd derivatives.yaml) and its temporaries."""

from __future__ import annotations

from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Size, Tape, Value

QUANTISED_4BIT = frozenset({"nf4", "fp4"})
NVFP4 = 0.5 + 1 / 16  # bytes of an element: four bits, and an fp8 scale for sixteen (torchao prototype/moe_training/nvfp4_training/nvfp4_linear.py saves these)
PARAMETRISED = frozenset({"nf4", "fp4", "int8"})


def tokens(bytes_a_token: float) -> Size:
    """A size that grows with the tokens."""
    return (bytes_a_token, 0.0, 0.0, 0.0)


def cast(tape: Tape, x: Value, element: int, label: str | None = None) -> Value:
    """``x.to(dtype)``: nothing where the dtype is already right; saves nothing, its backward casts the gradient back."""
    if x.element == element:
        return x
    return tape.run("cast", (x,), x.width, element, label=label or f"{x.name} as {'fp32' if element == 4 else 'bf16'}")


def residual(tape: Tape, x: Value, y: Value) -> Value:
    """``x + y``: saves nothing; both gradients are the same tensor (cast where the dtypes differ)."""
    element = max(x.element, y.element)
    if y.element != element:
        y = tape.run("add cast", (y,), y.width, element, label="widened branch", forward=NOTHING)
    return tape.run("residual add", (x, y), x.width, element, shares=x.element == element, label="residual stream")


def all_gather(tape: Tape, s: Setting, x: Value, hidden: float, name: str) -> Value:
    """Under sequence parallelism a DTensor's norm works on a rank's part of the sequence, and the linears on a gathered copy of the whole.

    That copy is the input that the linears save: unlike Megatron's, it is not gathered anew in backward. Source: torch
    distributed/tensor/parallel/style.py PrepareModuleInput (Shard(1) to Replicate), torchtitan infra/parallelize.py apply_tp.
    """
    return tape.run(f"{name} all-gather", (x,), hidden, x.element, label=f"gathered {name}") if s.sequence else x


def reduce_scatter(tape: Tape, s: Setting, x: Value, name: str) -> Value:
    """The partial sums of all ranks, added and divided again over the sequence; torchtitan's policy keeps the result (``_save_list``)."""
    return tape.run(f"{name} reduce-scatter", (x,), x.width / s.tensor, x.element, kind="scatter", label=f"{name}, a rank's part") if s.sequence else x


def rms_norm(tape: Tape, s: Setting, x: Value, name: str, *, width: float | None = None, bare: bool = False) -> Value:
    """RMSNorm over ``width`` elements (a head for query and key norms).

    Hugging Face (modeling_llama.LlamaRMSNorm): casts to fp32, saves the fp32 input (pow and mul), the statistic, and, where the weight
    trains, the normalised tensor in the input's dtype. Gemma, Olmo 2 and others multiply by the weight in fp32 and cast last.
    T5 scales the input itself, which it saves beside the copy (modeling_t5 T5LayerNorm).
    Fused (liger ops/rms_norm.py): saves the input as it came and one fp32 statistic a row; its backward writes in place. ``bare``: no weight.
    """
    trains = s.trained and not bare
    rows = 1.0 if width is None else x.width / width
    weight = _w(trains, width or x.width)
    stat = (f"{name} statistic", 4, tokens(4.0 * rows))
    if "rmsnorm" in s.fused:
        return tape.run(name, (x,), x.width, x.element, saves=(x,), keeps=(stat,), shares=True, weights=weight, label=f"{name} output")
    wide = cast(tape, x, 4, f"{name} input as fp32")
    one = tokens(4 * x.width)
    normed = tape.run(
        f"{name} scale",
        (wide,),
        x.width,
        4,
        saves=(wide, x) if s.norm_kind == "rms-both" else (wide,),
        keeps=(stat,),
        forward=one,
        backward=tokens(12 * x.width),
        label=f"{name} normalised",
    )
    if bare:
        return cast(tape, normed, x.element, f"{name} output")
    if s.norm_kind.endswith("wide"):
        return cast(tape, _weighted(tape, normed, name, 4, trains, weight), x.element, f"{name} output")
    narrow = cast(tape, normed, x.element, f"{name} normalised")
    return _weighted(tape, narrow, name, max(x.element, s.norm), trains, weight)


def _weighted(tape: Tape, x: Value, name: str, element: int, trains: bool, weight: float) -> Value:
    temp = tokens(element * x.width) if trains else NOTHING  # gradient x normalised, before it is summed over the tokens
    return tape.run(f"{name} weight", (x,), x.width, element, saves=(x,) if trains else (), backward=temp, weights=weight, label=f"{name} output")


def layer_norm(tape: Tape, s: Setting, x: Value, name: str) -> Value:
    """``F.layer_norm``: saves its input and fp32 mean and rstd; under autocast it runs in fp32 (autocast_mode.h).

    Cohere's is written out in fp32: centred twice (for the variance and for the quotient), then the weighted tensor. OLMo's is torch's, on an
    fp32 copy and without weights.
    """
    weight = _w(s.trained, x.width)
    if s.norm_kind == "layer-wide":
        wide = cast(tape, x, 4, f"{name} input as fp32")
        one = 4 * x.width
        square = ((f"{name} centred for the variance", 4, tokens(one)), (f"{name} statistic", 4, tokens(4.0)))
        centred = tape.run(f"{name} centre", (wide,), x.width, 4, keeps=square, label=f"{name} centred")
        normed = tape.run(f"{name} scale", (centred,), x.width, 4, saves=(centred,), backward=tokens(2 * one), label=f"{name} normalised")
        return cast(tape, _weighted(tape, normed, name, 4, s.trained, weight), x.element, f"{name} output")
    stats = (f"{name} statistics", 4, tokens(8.0))
    if s.norm_kind == "layer-float":
        wide = cast(tape, x, 4, f"{name} input as fp32")
        return cast(tape, tape.run(name, (wide,), x.width, 4, saves=(wide,), keeps=(stats,), label=f"{name} as fp32"), x.element, f"{name} output")
    if s.autocast:
        x = cast(tape, x, 4, f"{name} input as fp32")
    elif s.norm > x.element:
        x = cast(tape, x, s.norm, f"{name} input as fp32")
    return tape.run(name, (x,), x.width, x.element, saves=(x,), keeps=(stats,), weights=weight, label=f"{name} output")


def norm(tape: Tape, s: Setting, x: Value, name: str) -> Value:
    """The block's kind of norm."""
    return layer_norm(tape, s, x, name) if s.norm_kind.startswith("layer") else rms_norm(tape, s, x, name)


def parts(tape: Tape, x: Value, widths: tuple[tuple[str, float], ...]) -> list[Value]:
    """``split`` and ``chunk``: views of one tensor; their backward joins the parts' gradients in a new tensor of the whole width."""
    out = []
    for i, (name, width) in enumerate(widths):
        out.append(tape.run("split", (x,), width, x.element, view=True, joins=i == 0, label=name))
    return out


def dropout(tape: Tape, s: Setting, x: Value, p: float, name: str, *, pairs: bool = False) -> Value:
    """``F.dropout`` on CUDA (native_dropout): keeps a mask of one byte an element; nothing where p is 0."""
    if p <= 0:
        return x
    n = s.dropout_mask * x.width
    mask: Size = (0.0, n, 0.0, 0.0) if pairs else tokens(n)
    return tape.run(
        f"{name} dropout", (x,), x.width, x.element, keeps=((f"{name} dropout mask", s.dropout_mask, mask),), pairs=pairs, label=f"{name} after dropout"
    )


def linear(tape: Tape, s: Setting, x: Value, name: str, out: float, *, copies: float = 1.0, experts: float = 1.0, kind: str = "mm") -> Value:
    """``nn.Linear`` with its base layout and, where it has one, its adapter. A token passes ``copies`` of ``experts`` such layers.

    Experts' products are one call of ``torch._grouped_mm``, which is no ``mm`` to a policy that keeps some operations.

    A dense layer saves its input only where its weight trains. A quantised one (bitsandbytes MatMul4Bit) saves its quantised weight and
    builds the 16-bit weight anew in forward and backward. A frozen fp32 weight under autocast is cast for each call and the cast is
    saved (autocast caches only leaves that need gradients).
    """
    size = x.width / copies * out / copies * experts
    routed = experts > 1.0
    if routed and s.experts_adapted:
        return _folded(tape, s, x, name, out, size, copies, experts)
    if s.base == "none" or (routed and not s.experts_quantised):
        y = _dense(tape, s, x, name, out, size, "grouped" if routed else kind)
    elif routed and s.experts == "grouped" and s.base in PARAMETRISED:
        y = _parametrised(tape, s, x, name, out, size)
    else:
        y = _quantised(tape, s, x, name, out, size / experts)
    if name in s.adapted:
        from advisor.arithmetic.blocks.adapters import adapter

        y = adapter(tape, s, x, y, name, out, copies, experts)
    return y


def _dense(tape: Tape, s: Setting, x: Value, name: str, out: float, size: float, kind: str) -> Value:
    if s.autocast:
        narrow = cast(tape, x, s.compute, f"{name} input as bf16")
        frozen_cast = s.weight > s.compute and not s.trained
        keeps = ((f"{name} weight as bf16", s.compute, (0.0, 0.0, size * s.compute, 0.0)),) if frozen_cast else ()
        return tape.run(
            name, (narrow,), out, s.compute, saves=(narrow,) if s.trained else (), keeps=keeps, weights=_w(s.trained, size), kind=kind, label=f"{name} output"
        )
    if s.fp8:  # TransformerEngine saves the quantised input (columnwise, for the weight gradient), not the 16-bit one
        copy = ((f"{name} input as fp8", 1, tokens(x.width)),) if s.trained else ()
        return tape.run(name, (x,), out, x.element, keeps=copy, weights=_w(s.trained, size), kind=kind, label=f"{name} output")
    if s.nvfp4 and s.trained and kind == "mm":  # aten._scaled_mm_v2, which is not on torch's list of compute-intensive operations
        codes = ((f"{name} input as nvfp4", 1, tokens(NVFP4 * x.width)), (f"{name} weight as nvfp4", 1, (0.0, 0.0, NVFP4 * size, 0.0)))
        return tape.run(name, (x,), out, x.element, keeps=codes, weights=size, kind="scaled", label=f"{name} output")
    element = max(x.element, s.weight) if x.element != s.weight else x.element
    x = cast(tape, x, element)
    return tape.run(name, (x,), out, element, saves=(x,) if s.trained else (), weights=_w(s.trained, size), kind=kind, label=f"{name} output")


def _quantised(tape: Tape, s: Setting, x: Value, name: str, out: float, size: float) -> Value:
    narrow = cast(tape, x, s.compute, f"{name} input as bf16")
    whole: Size = (0.0, 0.0, 0.0, size * s.compute)
    y = tape.run(
        name, (narrow,), out, s.compute, saves=(narrow,) if s.keeps_input else (), lasting=s.keeps_input, forward=whole, backward=whole, label=f"{name} output"
    )
    return cast(tape, y, x.element, f"{name} output")


def _parametrised(tape: Tape, s: Setting, x: Value, name: str, out: float, size: float) -> Value:
    """All experts' weights in one quantised parameter: a parametrisation builds the whole 16-bit tensor, which autograd keeps for the input's gradient.

    Source: bitsandbytes nn/parametrize.py replace_parameter_4bit, which axolotl monkeypatch/moe_quant.py applies to 3-D expert parameters.
    """
    narrow = cast(tape, x, s.compute, f"{name} input as bf16")
    whole = ((f"{name} of all experts in 16 bit", s.compute, (0.0, 0.0, size * s.compute, 0.0)),)
    return cast(tape, tape.run(name, (narrow,), out, s.compute, keeps=whole, kind="mm", label=f"{name} output"), x.element, f"{name} output")


def _folded(tape: Tape, s: Setting, x: Value, name: str, out: float, size: float, copies: float, experts: float) -> Value:
    """Adapters of fused experts: ``W + A B`` of all experts is made for each pass and kept for the input's gradient; its own gradient is as large.

    Source: peft tuners/lora/layer.py ParamWrapper, _LoraFactorsProxy (one baddbmm since 0.21; before, the product apart and then the sum).
    """
    whole: Size = (0.0, 0.0, size * s.weight, 0.0)
    rank = s.rank * (2 if name == "gate_up_proj" else 1)
    adapters = rank * (x.width + out) / copies * experts
    keeps = ((f"{name} with adapters folded in", s.weight, whole),)
    return tape.run(name, (x,), out, x.element, saves=(x,), keeps=keeps, backward=whole, weights=adapters, kind="mm", label=f"{name} output")


def _w(trains: bool, elements: float) -> float:
    return elements if trains else 0.0
