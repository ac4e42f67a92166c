"""Attention: projections, rotary embedding, and the kernel with what it keeps."""

from __future__ import annotations

from advisor.architecture import Block
from advisor.arithmetic.blocks.operations import cast, dropout, linear, parts, rms_norm, tokens
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Tape, Value

FUSED = frozenset({"flash", "flex", "cudnn", "efficient", "te-fused"})


def attention(tape: Tape, s: Setting, block: Block, x: Value, hidden: float) -> Value:
    """Self-attention of a block, from the normed input to the output projection."""
    if block.latent is not None:
        from advisor.arithmetic.blocks.latent import latent_attention

        return latent_attention(tape, s, block, block.latent, x, hidden)
    d = block.head_dim
    heads, kv = block.heads / s.tensor, max(block.kv_heads / s.tensor, 1)
    q, k, v = projections(tape, s, block, x, heads * d, kv * d, kv * block.v_head_dim)
    shared = k.size == NOTHING  # normed and turned where they were made
    if s.bare_qk and s.rotary != "none":
        q, k = rotary(tape, s, q, "query"), rotary(tape, s, k, "key")
    if block.qk_norm:
        q = rms_norm(tape, s, q, "query norm", width=None if s.wide_qk else d, bare=s.bare_qk)
        k = k if shared else rms_norm(tape, s, k, "key norm", width=None if s.wide_qk else d, bare=s.bare_qk)
    if s.rotary != "none" and not s.bare_qk:
        q, k = rotary(tape, s, q, "query"), k if shared else rotary(tape, s, k, "key")
    if s.laid_out and s.rotary == "joined":  # joined parts lie heads first; other queries and keys are in order, or were copied out of a fused layer
        q, k = (tape.run("order of heads", (t,), t.width, t.element, label=f"{name}, tokens first") for t, name in ((q, "query"), (k, "key")))
    if s.value_norm and not shared:
        v = rms_norm(tape, s, v, "value norm", width=block.v_head_dim, bare=True)
    y = kernel(tape, s, q, k, v, heads, kv, d, block.v_head_dim)
    if ((s.rotary == "joined" and s.kernel in FUSED) or (s.heads_first and s.kernel == "flash")) and not s.laid_out:
        y = tape.run("order of heads", (y,), y.width, y.element, label="attention output, tokens first")
    y = linear(tape, s, y, output_name(block), hidden)
    return dropout(tape, s, y, s.hidden_dropout, "attention output")


def output_name(block: Block) -> str:
    """The leaf name of the output projection."""
    names = [t.name for t in block.tensors if t.role == "attention" and len(t.shape) == 2]
    for known in ("o_proj", "out_proj", "dense", "c_proj", "wo", "proj", "o"):
        if known in names:
            return known
    return names[-1] if names else "o_proj"


def projections(tape: Tape, s: Setting, block: Block, x: Value, q: float, k: float, v: float) -> tuple[Value, Value, Value]:
    """Query, key and value: three layers, or one fused layer whose parts are views of one tensor."""
    names = [t.name for t in block.tensors if t.role == "attention" and len(t.shape) == 2]
    fused = next((n for n in names if n in ("qkv_proj", "c_attn", "query_key_value", "Wqkv", "W_pack", "qkv", "attn", "linear_qkv")), None)
    if fused is None and "q_proj" in names and "k_proj" not in names:  # Gemma 3n and 4: keys and values that an earlier layer keeps
        return (
            linear(tape, s, x, "q_proj", q),
            Value("another layer's keys", k, x.element, True, NOTHING),
            Value("another layer's values", v, x.element, True, NOTHING),
        )
    if fused is None and "k_proj" in names and "v_proj" not in names:  # Gemma 4: the keys, before their norm, are the values too
        key = linear(tape, s, x, "k_proj", k)
        return linear(tape, s, x, "q_proj", q), key, key
    if fused is None:
        three = [n for n in names if n != output_name(block)][:3]
        if len(three) < 3:
            three = ["q_proj", "k_proj", "v_proj"]
        return (
            linear(tape, s, x, three[0], q),
            linear(tape, s, x, three[1], k),
            linear(tape, s, x, three[2], v),
        )
    whole = linear(tape, s, x, fused, q + k + v)
    tape.projection = whole
    query, key, value = parts(tape, whole, (("query", q), ("key", k), ("value", v)))
    if s.laid_out and s.rotary == "none" and not block.qk_norm:  # else the turned ones are new tensors
        query, key = (tape.run("order of heads", (t,), t.width, t.element, label=name) for t, name in ((query, "query"), (key, "key")))
    if s.parts_copied or s.laid_out:
        value = tape.run("order of heads", (value,), value.width, value.element, label="value")  # query and key are copied when they are turned
    return query, key, value


def rotary(tape: Tape, s: Setting, x: Value, name: str) -> Value:
    """``x * cos + rotate_half(x) * sin``: cos and sin belong to the model, so nothing of the block is kept; a few copies come and go."""
    if "rope" in s.fused:
        return tape.run(f"{name} rotary", (x,), x.width, x.element, shares=True, view=True, label=f"{name} with position")
    if s.rotary == "wide":
        wide = cast(tape, x, 4, f"{name} as fp32")
        turned = tape.run(f"{name} rotary", (wide,), x.width, 4, forward=tokens(8 * x.width), backward=tokens(12 * x.width), label=f"{name} turned")
        return cast(tape, turned, x.element, f"{name} with position")
    one = x.width * x.element
    return tape.run(f"{name} rotary", (x,), x.width, x.element, forward=tokens(2 * one), backward=tokens(3 * one), label=f"{name} with position")


def kernel(tape: Tape, s: Setting, q: Value, k: Value, v: Value, heads: float, kv: float, d: int, dv: int) -> Value:
    """The attention product by the kernel that really runs."""
    if s.kernel in FUSED:
        if s.autocast or q.element > 2:
            narrow = s.compute if s.autocast or s.kernel == "flash" else q.element
            q, k, v = (cast(tape, t, narrow, f"{n} for attention") for t, n in ((q, "query"), (k, "key"), (v, "value")))
        if s.masked or s.expanded or s.kernel == "efficient":
            k, v = expand(tape, k, heads * d, "key"), expand(tape, v, heads * dv, "value")
            kv = heads
        return flash(tape, q, k, v, heads, kv, d, dv, bias=s.bias if s.masked and s.kernel == "efficient" else 0)
    if s.kernel == "math":
        return math(tape, s, q, expand(tape, k, heads * d, "key"), expand(tape, v, heads * dv, "value"), heads, dv)
    return scores(tape, s, q, expand(tape, k, heads * d, "key"), expand(tape, v, heads * dv, "value"), heads, dv)


def expand(tape: Tape, x: Value, width: float, name: str) -> Value:
    """``repeat_kv``: keys and values copied to all query heads; nothing where they are as many already."""
    if x.width >= width:
        return x
    return tape.run(f"{name} repeat", (x,), width, x.element, label=f"{name} repeated to all heads")


def flash(tape: Tape, q: Value, k: Value, v: Value, heads: float, kv: float, d: int, dv: int, *, bias: int = 0) -> Value:
    """Flash attention: keeps query, key, value, output and one fp32 log-sum-exp a head.

    Its backward (flash_api.cpp mha_bwd) allocates fp32 dQ accumulators of the head size rounded to 32 (64 above 128), an fp32 row sum, and
    keys' and values' gradients for all query heads where these are fewer.

    ``bias``: bytes of an element of the mask that a call makes of truth values for the memory-efficient kernel, which keeps it
    (ATen transformers/attention.cpp convert_boolean_attn_mask; derivatives.yaml _scaled_dot_product_efficient_attention: attn_bias).
    """
    out = heads * dv
    step = 32 if d <= 128 else 64
    accumulator = heads * (-(-d // step) * step) * 4 + heads * 4
    expanded = heads * (d + dv) * q.element if kv < heads else 0
    lse = ("attention log-sum-exp", 4, tokens(4 * heads))
    added = (("attention mask as numbers", bias, (0.0, float(bias), 0.0, 0.0)),) if bias else ()
    temp = tokens(accumulator + expanded)
    return tape.run(
        "attention",
        (q, k, v),
        out,
        q.element,
        saves=(q, k, v),
        saves_output=True,
        keeps=(lse, *added),
        backward=temp,
        kind="attention",
        label="attention output",
    )


def scores(tape: Tape, s: Setting, q: Value, k: Value, v: Value, heads: float, dv: int) -> Value:
    """Eager attention (modeling_llama.eager_attention_forward): keeps the fp32 softmax, and its 16-bit cast for the product with the values."""
    one = heads  # elements a token and key
    if s.autocast:
        q, k, v = (cast(tape, t, s.compute, f"{n} for attention") for t, n in ((q, "query"), (k, "key"), (v, "value")))
    if s.wide_scores and not s.autocast:
        q, k = cast(tape, q, 4, "query as fp32"), cast(tape, k, 4, "key as fp32")
    raw = tape.run("scores", (q, k), one, q.element, saves=(q, k), pairs=True, label="attention scores")
    scaled = tape.run("scale", (raw,), one, raw.element, pairs=True, label="scaled scores")
    if s.softcap:
        t = tape.run("softcap tanh", (scaled,), one, scaled.element, pairs=True, saves_output=True, label="softcap tanh")
        scaled = tape.run("softcap scale", (t,), one, t.element, pairs=True, label="capped scores")
    if s.masked or s.kernel == "eager":
        scaled = tape.run("mask", (scaled,), one, scaled.element, pairs=True, shares=True, label="masked scores")
    if s.floored:
        scaled = tape.run("floor", (scaled,), one, scaled.element, pairs=True, saves=(scaled,), label="floored scores")
    e = scaled.element if s.narrow_softmax and not s.autocast else 4
    wide = cast_pairs(tape, scaled, e)
    kept = (wide,) if s.softmax_keeps else ()
    weights = tape.run("softmax", (wide,), one, e, pairs=True, saves=kept, saves_output=True, label="attention weights fp32" if e == 4 else "attention weights")
    narrow = cast_pairs(tape, weights, v.element)
    dropped = dropout(tape, s, narrow, s.attention_dropout, "attention weights", pairs=True)
    if s.returns_weights:
        tape.returned = dropped
    y = tape.run("weights x value", (dropped, v), heads * dv, v.element, saves=(dropped, v), label="attention output heads first")
    return tape.run("transpose", (y,), heads * dv, v.element, label="attention output")


def math(tape: Tape, s: Setting, q: Value, k: Value, v: Value, heads: float, dv: int) -> Value:
    """SDPA's math kernel (ATen attention.cpp _scaled_dot_product_attention_math): 16-bit inputs become fp32 (since torch 2.5), so everything it keeps is."""
    before = q.element
    if s.autocast and not s.math_wide:
        q, k, v = (cast(tape, t, s.compute, f"{n} for attention") for t, n in ((q, "query"), (k, "key"), (v, "value")))
    e = 4 if s.math_wide else q.element
    q, k, v = (cast(tape, t, e, f"{n} as fp32") for t, n in ((q, "query"), (k, "key"), (v, "value")))
    q, k = (tape.run(f"scale {n}", (t,), t.width, e, label=f"scaled {n}") for t, n in ((q, "query"), (k, "key")))
    raw = tape.run("scores", (q, k), heads, e, saves=(q, k), pairs=True, label="attention scores")
    masked = tape.run("mask", (raw,), heads, e, pairs=True, shares=True, label="masked scores")
    weights = tape.run("softmax", (masked,), heads, e, pairs=True, saves_output=True, label="attention weights fp32" if e == 4 else "attention weights")
    dropped = dropout(tape, s, weights, s.attention_dropout, "attention weights", pairs=True)
    y = tape.run("weights x value", (dropped, v), heads * dv, e, saves=(dropped, v), label="attention output heads first")
    y = cast(tape, y, before, "attention output in 16 bit")
    return tape.run("transpose", (y,), heads * dv, y.element, label="attention output")


def cast_pairs(tape: Tape, x: Value, element: int) -> Value:
    """A cast of a score matrix."""
    if x.element == element:
        return x
    return tape.run("cast scores", (x,), x.width, element, pairs=True, label=f"attention weights {'fp32' if element == 4 else '16-bit'}")
