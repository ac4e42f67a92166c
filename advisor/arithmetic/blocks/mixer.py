"""State-space and convolution mixers: what their fused kernels save for the backward pass and need while they run.

Sources: mamba_ssm ops/triton/ssd_combined.py ``MambaSplitConv1dScanCombinedFn`` (Mamba 2), ops/selective_scan_interface.py ``MambaInnerFn``
and ``SelectiveScanFn`` (Mamba 1), ops/triton/layernorm_gated.py; who calls which: transformers modeling_bamba.py and its likes, Megatron-LM
core/ssm/mamba_mixer.py ``_ssm_training``. Without those packages the code in Python keeps many times more (``scans.py``). Known error: the
kernels were read, not run.
"""

from __future__ import annotations

from advisor.architecture import Block, Mixer
from advisor.arithmetic.blocks.operations import linear, parts, tokens
from advisor.arithmetic.blocks.scans import PYTHON, chunked, delta, gated_norm, stepped
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Tape, Value

CHUNK, MEGATRON_CHUNK = 256, 128  # tokens of a chunk of the Mamba 2 scan: chunk_size of the configs, of Megatron's MambaMixer
LONG_CHUNK = 2048  # tokens between the states that the Mamba 1 scan keeps (csrc/selective_scan/selective_scan_fwd_kernel.cuh)


def mix(tape: Tape, s: Setting, block: Block, mixer: Mixer, x: Value, hidden: float) -> Value:
    """From the normed input to the output projection."""
    if mixer.kind == "short-conv":
        return _short_conv(tape, s, x, hidden)
    shapes = {t.name: t.shape for t in block.tensors if t.role == "mixer"}
    if PYTHON in s.fused:
        return _in_python(tape, s, block, mixer, x, hidden)
    if mixer.kind == "mamba2":
        return _structured(tape, s, mixer, x, hidden)
    if mixer.kind == "mamba" and "x_proj" in shapes:
        small = float(shapes["x_proj"][0])  # step, B and C of a token
        normed = any(t.name == "b_layernorm" for t in block.tensors)
        return (_selective_apart if normed else _selective)(tape, s, mixer, small, x, hidden)
    return _linear_attention(tape, s, block, mixer, x, hidden)


def _in_python(tape: Tape, s: Setting, block: Block, mixer: Mixer, x: Value, hidden: float) -> Value:
    """The mixer with convolution, scan and gated norm written out: the convolution keeps its input and output, and the scan as ``scans.py`` says."""
    names = [t.name for t in block.tensors if t.role == "mixer" and len(t.shape) == 2 and t.linear]
    inner, heads = mixer.inner / s.tensor, mixer.heads / s.tensor
    steps = mixer.kind == "mamba"
    extra = 0.0 if steps else 2 * mixer.groups * mixer.state / s.tensor
    packed = linear(tape, s, x, names[0] if names else "in_proj", 2 * inner + extra + (0.0 if steps else heads))
    gate, stream = parts(tape, packed, (("gate", inner), ("convolution input", inner + extra)))
    conv = tape.run("convolution", (stream,), inner + extra, stream.element, saves=(stream,), label="convolution output")
    act = tape.run("convolution activation", (conv,), inner + extra, conv.element, saves=(conv,), label="scan input")
    if steps:
        step = tape.run("step size", (act,), inner, act.element, saves=(act,), keeps=(("softplus input", act.element, tokens(act.element * inner)),))
        y = stepped(tape, mixer, step, inner)
        y = tape.run("gate product", (y, gate), inner, y.element, saves=(y, gate), label="gated output")
    elif mixer.kind == "mamba2":
        y = gated_norm(tape, chunked(tape, mixer, act, inner, heads), gate, inner, trained=s.trained)
    else:
        y = gated_norm(tape, delta(tape, mixer, act, inner, heads), gate, inner, trained=s.trained)
    return linear(tape, s, y, names[-1] if names else "out_proj", hidden)


def _structured(tape: Tape, s: Setting, mixer: Mixer, x: Value, hidden: float) -> Value:
    """Mamba 2 in one function: it keeps the input projection's output and the scan's output before its gate, and makes the rest anew.

    While it runs: the convolution's output, the states of the chunks, C times B within a chunk in fp32, step sizes and their sums in fp32.
    Backward: the convolution's output and its gradient, states and their gradients, C times B and its gradient, fp32 gradients of B and C.
    Transformers hands it the gated norm and the output projection too; Megatron's follow it, and keep their own inputs.
    """
    inner, heads, groups = mixer.inner / s.tensor, mixer.heads / s.tensor, mixer.groups / s.tensor
    channels = inner + 2 * groups * mixer.state
    packed = linear(tape, s, x, "in_proj", inner + channels + heads)
    e, outside = packed.element, s.source == "megatron" or s.base != "none"
    chunk = MEGATRON_CHUNK if s.source == "megatron" else CHUNK
    states, within = inner * mixer.state / chunk, 4 * groups * chunk
    own = 0.0 if outside else inner  # the normed output, made for the projection and again for its weight's gradient
    forward = tokens(e * (channels + own + states) + within + 8 * heads)
    backward = tokens(e * (2 * channels + 2 * own + 2 * states) + 2 * within + 8 * groups * mixer.state + 24 * heads)
    kept = ("scan output before its gate", e, tokens(e * inner))
    if not outside:
        statistic = ("gated norm statistic", 4, tokens(4 * groups))
        trained = inner * hidden + inner + channels * mixer.conv + 3 * heads if s.trained else 0.0
        return tape.run(
            "scan", (packed,), hidden, e, saves=(packed,), keeps=(kept, statistic), forward=forward, backward=backward, weights=trained, kind="mm",
            label="out_proj output",
        )  # fmt: skip
    scanned = tape.run("scan", (packed,), inner, e, saves=(packed,), keeps=(kept,), forward=forward, backward=backward, label="scan output")
    statistic = ("gated norm statistic", 4, tokens(4 * groups))
    normed = tape.run("gated norm", (scanned,), inner, e, saves=(scanned,), keeps=(statistic,), label="gated norm output")
    return linear(tape, s, normed, "out_proj", hidden)


def _selective(tape: Tape, s: Setting, mixer: Mixer, small: float, x: Value, hidden: float) -> Value:
    """Mamba 1 in one function (``checkpoint_lvl`` 1): convolution and step are made anew in the backward pass."""
    inner = mixer.inner / s.tensor
    packed = linear(tape, s, x, "in_proj", 2 * inner)
    e = packed.element
    keeps = (
        ("scan output before its gate", e, tokens(e * inner)),
        ("step, B and C", e, tokens(e * (small + 2 * mixer.state))),  # x_dbl, and contiguous copies of B and C
        ("scan states", 4, tokens(8 * inner * mixer.state / LONG_CHUNK)),
    )
    forward = tokens(3 * e * inner)  # convolution output, step, gated output
    backward = tokens(5 * e * inner)  # convolution output, step, gradients of both and of the gated output
    trained = inner * (hidden + mixer.conv + 2 * small) if s.trained else 0.0
    return tape.run(
        "scan", (packed,), hidden, e, saves=(packed,), keeps=keeps, forward=forward, backward=backward, weights=trained, kind="mm", label="out_proj output"
    )


def _selective_apart(tape: Tape, s: Setting, mixer: Mixer, small: float, x: Value, hidden: float) -> Value:
    """Jamba norms step, B and C, so that convolution, projections and scan are operations of their own (modeling_jamba.JambaMambaMixer)."""
    inner = mixer.inner / s.tensor
    packed = linear(tape, s, x, "in_proj", 2 * inner)
    stream, gate = parts(tape, packed, (("convolution input", inner), ("gate", inner)))
    conv = tape.run("convolution", (stream,), inner, stream.element, saves=(stream,), label="convolution output")
    picked = linear(tape, s, conv, "x_proj", small)
    normed = tape.run("step norms", (picked,), small, picked.element, saves=(picked,), backward=tokens(8 * small), label="normed step, B and C")
    step = linear(tape, s, normed, "dt_proj", inner)
    states = ("scan states", 4, tokens(8 * inner * mixer.state / LONG_CHUNK))
    kept = ("scan output before its gate", conv.element, tokens(conv.element * inner))
    scanned = tape.run("scan", (conv, step, gate), inner, conv.element, saves=(conv, step, gate), keeps=(kept, states), label="scan output")
    return linear(tape, s, scanned, "out_proj", hidden)


def _linear_attention(tape: Tape, s: Setting, block: Block, mixer: Mixer, x: Value, hidden: float) -> Value:
    """Gated delta rule and the like: projections exactly; of the scan inputs, output and chunk states are counted, a bound that was not read from kernels."""
    names = [t.name for t in block.tensors if t.role == "mixer" and len(t.shape) == 2]
    widths = [float(t.shape[0]) for t in block.tensors if t.role == "mixer" and len(t.shape) == 2]
    entry = names[0] if names else "in_proj"
    wide = sum(widths[:-1]) if len(widths) > 1 else 2.0 * mixer.inner
    packed = linear(tape, s, x, entry, wide / s.tensor)
    inner = mixer.inner / s.tensor
    channels = inner + 2 * mixer.groups * mixer.state / s.tensor
    gate, rest = parts(tape, packed, (("gate", inner), ("scan input", channels)))
    conv = tape.run("convolution", (rest,), channels, rest.element, saves=(rest,), label="convolution output")
    states = ("chunk states", 4, tokens(4.0 * inner * mixer.state / CHUNK))
    scanned = tape.run("scan", (conv,), inner, conv.element, saves=(conv,), saves_output=True, keeps=(states,), label="scan output")
    gated = tape.run("gated norm", (scanned, gate), inner, scanned.element, saves=(scanned, gate), backward=tokens(8.0 * inner), label="gated output")
    return linear(tape, s, gated, names[-1] if names else "out_proj", hidden)


def _short_conv(tape: Tape, s: Setting, x: Value, hidden: float) -> Value:
    """LFM2's gated short convolution: three parts of one projection, ``C * conv(B * x)`` (transformers modeling_lfm2)."""
    packed = linear(tape, s, x, "in_proj", 3 * hidden)
    b, c, value = parts(tape, packed, (("B", hidden), ("C", hidden), ("x", hidden)))
    product = tape.run("B x", (b, value), hidden, b.element, saves=(b, value), label="B times x")
    conv = tape.run("convolution", (product,), hidden, product.element, saves=(product,), label="convolution output")
    y = tape.run("C y", (c, conv), hidden, c.element, saves=(c, conv), label="C times convolution")
    return linear(tape, s, y, "out_proj", hidden)
