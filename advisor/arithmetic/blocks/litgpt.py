"""A litgpt block (litgpt model.py, lora.py): one matrix for query, key and value; keys and values expanded to all heads."""

from __future__ import annotations

from advisor.architecture import Block
from advisor.arithmetic.blocks.attention import expand, kernel, output_name, rotary
from advisor.arithmetic.blocks.mlp import mlp
from advisor.arithmetic.blocks.operations import dropout, linear, norm, parts, residual, tokens
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Tape, Value


def litgpt(tape: Tape, s: Setting, block: Block, x: Value, hidden: int) -> Value:
    """Norm, attention, norm, MLP, or both side by side; its RMSNorm multiplies by the weight in fp32 (``rms-wide``)."""
    normed = norm(tape, s, x, "attention norm")
    attended = _attention(tape, s, block, normed, hidden)
    if block.norms >= 4:
        attended = norm(tape, s, attended, "norm after attention")
    if block.parallel:
        second = normed if block.norms < 2 else norm(tape, s, x, "MLP norm")
        return residual(tape, mlp(tape, s, block, second, hidden), residual(tape, attended, x))
    x = residual(tape, attended, x)
    y = mlp(tape, s, block, norm(tape, s, x, "MLP norm"), hidden)
    if block.norms >= 4:
        y = norm(tape, s, y, "norm after MLP")
    return residual(tape, y, x)


def _attention(tape: Tape, s: Setting, block: Block, x: Value, hidden: int) -> Value:
    d, heads, kv = block.head_dim, block.heads, block.kv_heads
    widths = (("query", float(heads * d)), ("key", float(kv * d)), ("value", float(kv * d)))
    names = ("q_proj", "k_proj", "v_proj")
    whole = sum(w for _, w in widths)
    enabled = [w for (_, w), n in zip(widths, names, strict=True) if n in s.adapted]
    qkv = linear(tape, s, x, "qkv", whole)
    if enabled:
        inner = dropout(tape, s, x, s.dropout, "qkv adapter")
        rank = s.rank * len(enabled)
        low = tape.run("qkv lora_A", (inner,), rank, s.adapter, saves=(inner,), weights=x.width * rank, label="qkv lora_A output")
        turned = tape.run("qkv transpose", (low,), rank, low.element, label="qkv lora_A output, channels first")
        high = tape.run("qkv lora_B", (turned,), sum(enabled), low.element, saves=(turned,), weights=sum(enabled) * s.rank, label="qkv lora_B output")
        if len(enabled) < len(names):
            # index_copy's backward asks its source for its shape, and so keeps it (derivatives.yaml index_copy: expand_as(source))
            high = tape.run("qkv zero pad", (high,), whole, high.element, saves=(high,), label="qkv adapter output, padded")
        scaled = tape.run("qkv scaling", (high,), whole, high.element, label="qkv adapter output")
        qkv = tape.run("qkv sum", (qkv, scaled), whole, qkv.element, shares=True, label="qkv output")
    q, k, v = parts(tape, qkv, widths)
    one = tokens(q.width * q.element)
    q = tape.run("join", (rotary(tape, s, q, "query"),), q.width, q.element, backward=one, label="query with position")
    k = tape.run("join", (rotary(tape, s, k, "key"),), k.width, k.element, label="key with position")
    k, v = expand(tape, k, heads * d, "key"), expand(tape, v, heads * d, "value")
    y = kernel(tape, s, q, k, v, heads, heads, d, d)
    y = tape.run("order of heads", (y,), y.width, y.element, label="attention output, tokens first")
    return linear(tape, s, y, output_name(block), hidden)
