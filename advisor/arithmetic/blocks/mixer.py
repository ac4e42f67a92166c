"""State-space and convolution mixers: projections exactly, the scan by what its fused kernel saves.

Known error: of the scan itself only inputs, output and chunk states are counted (mamba_ssm ops/triton/ssd_combined.py saves them; a fallback in
Python keeps several times more). Not checked by running: the kernels need a GPU.
"""

from __future__ import annotations

from advisor.architecture import Block, Mixer
from advisor.arithmetic.blocks.operations import linear, parts, tokens
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Tape, Value

CHUNK = 256  # tokens of a scan chunk (mamba_ssm chunk_size); one fp32 state a head is kept for each


def mix(tape: Tape, s: Setting, block: Block, mixer: Mixer, x: Value, hidden: float) -> Value:
    """From the normed input to the output projection."""
    if mixer.kind == "short-conv":
        return _short_conv(tape, s, x, hidden)
    names = [t.name for t in block.tensors if t.role == "mixer" and len(t.shape) == 2]
    widths = [float(t.shape[0]) for t in block.tensors if t.role == "mixer" and len(t.shape) == 2]
    entry = names[0] if names else "in_proj"
    wide = sum(widths[:-1]) if len(widths) > 1 else 2.0 * mixer.inner
    packed = linear(tape, s, x, entry, wide / s.tensor)
    inner = mixer.inner / s.tensor
    conv_width = inner + 2 * mixer.groups * mixer.state / s.tensor
    gate, rest = parts(tape, packed, (("gate", inner), ("scan input", conv_width)))
    conv = tape.run("convolution", (rest,), conv_width, rest.element, saves=(rest,), label="convolution output")
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
