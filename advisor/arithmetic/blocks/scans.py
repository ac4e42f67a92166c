"""Scans in Python: what transformers' code keeps where the fused kernels of mamba_ssm, causal_conv1d and fla are not installed.

Sources: transformers 5.24 modeling_bamba.py ``mamba2_chunk_scan`` (its likes share it), modeling_mamba.py ``mamba_selective_scan``,
modeling_qwen3_next.py ``torch_chunk_gated_delta_rule``; tensors checked by hooks on what autograd saves, and by the probe. Known error: the
largest moment of their backward passes is counted from the gradients of what is kept, not step by step.
"""

from __future__ import annotations

from advisor.architecture import Mixer
from advisor.arithmetic.blocks.operations import tokens
from advisor.arithmetic.blocks.tape import Tape, Value

PYTHON = "scans in Python"  # among a setting's kernels: the packages of the fused ones are not there; no word of a job
CHUNK, DELTA_CHUNK = 256, 64  # chunk_size of the configs; torch_chunk_gated_delta_rule's default
WIDE = 4  # bytes of an fp32 element, in which all three compute


def chunked(tape: Tape, mixer: Mixer, x: Value, inner: float, heads: float) -> Value:
    """Mamba 2: scores, decays and their product of every head within a chunk; B and C repeated to all heads five times; five inner ones; chunk states."""
    shared, within, states = heads * mixer.state, heads * CHUNK, inner * mixer.state / CHUNK
    keeps = (
        ("scores, decays and their product within chunks", WIDE, tokens(3 * WIDE * within)),
        ("B and C of all heads, in the order of each product", WIDE, tokens(5 * WIDE * shared)),
        ("scan input and output in fp32", WIDE, tokens(5 * WIDE * inner)),
        ("chunk states", WIDE, tokens(2 * WIDE * states)),
    )
    largest = tokens(WIDE * (2 * within + shared + inner))
    return tape.run("scan", (x,), inner, WIDE, keeps=keeps, forward=largest, backward=largest, label="scan output as fp32")


def stepped(tape: Tape, mixer: Mixer, x: Value, inner: float) -> Value:
    """Mamba 1: decay, input matrix and state of every token and channel, and the state once more in 16 bit for the product with C.

    Backward: each step's gradient of a slice is a tensor of all steps, added to the sum (torch derivatives.yaml select_backward).
    """
    one = inner * mixer.state
    keeps = (
        ("decays of every step", WIDE, tokens(WIDE * one)),
        ("input matrices of every step", WIDE, tokens(WIDE * one)),
        ("states of every step", WIDE, tokens((WIDE + x.element) * one)),
    )
    moment = tokens(WIDE * one)
    return tape.run("scan", (x,), inner, x.element, keeps=keeps, forward=moment, backward=tokens(4 * WIDE * one), label="scan output")


def delta(tape: Tape, mixer: Mixer, x: Value, inner: float, heads: float) -> Value:
    """Gated delta rule: eight tensors of the keys' width for all heads, three of the values', five matrices within chunks, a state a chunk."""
    wide, within = heads * mixer.state, heads * DELTA_CHUNK
    states = inner * mixer.state / DELTA_CHUNK
    keeps = (
        ("queries and keys as fp32, normed, with beta and decay", WIDE, tokens(8 * WIDE * wide)),
        ("values as fp32 and new values", WIDE, tokens(3 * WIDE * inner)),
        ("scores, decays and the triangular system within chunks", WIDE, tokens(5 * WIDE * within)),
        ("chunk states", WIDE, tokens(WIDE * states)),
    )
    backward = tokens(WIDE * (4 * wide + 3 * inner + within))  # gradients that grow over the chunks, and one more of a slice
    return tape.run("scan", (x,), inner, x.element, keeps=keeps, forward=tokens(WIDE * wide), backward=backward, label="scan output")


def gated_norm(tape: Tape, x: Value, gate: Value, inner: float, *, trained: bool) -> Value:
    """Norm and gate in fp32 (modeling_qwen3_next Qwen3NextRMSNormGated, modeling_bamba BambaRMSNormGated): input, gate and its silu, the normed tensor."""
    e = gate.element
    keeps = (
        ("scan output as fp32 for its norm", WIDE, tokens(WIDE * inner)),
        ("gate as fp32", WIDE, tokens(WIDE * inner)),
        ("silu of the gate", WIDE, tokens(WIDE * inner)),
        ("normed scan output", e, tokens((2 if trained else 1) * e * inner)),
    )
    return tape.run("gated norm", (x, gate), inner, e, keeps=keeps, backward=tokens(2 * WIDE * inner), label="gated output")
