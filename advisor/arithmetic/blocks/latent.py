"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434; transformers modeling_deepseek_v3)."""

from __future__ import annotations

from advisor.architecture import Block, Latent
from advisor.arithmetic.blocks.attention import kernel, output_name, rotary
from advisor.arithmetic.blocks.operations import dropout, linear, parts, rms_norm
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Tape, Value

FLASH_SAME_SIZE = frozenset({"flash"})  # kernels that want query, key and value heads of one size


def latent_attention(tape: Tape, s: Setting, block: Block, latent: Latent, x: Value, hidden: float) -> Value:
    """Queries and keys/values through low-rank projections with norms; the rotary part of the key is one head, expanded to all.

    Query and key are put together from their parts (a copy each), the value is padded to the query's head size where a flash kernel asks
    for equal sizes, and the output is cut back.
    """
    heads = block.heads / s.tensor
    d = latent.qk_nope + latent.qk_rope
    if latent.q_rank:
        low = rms_norm(tape, s, linear(tape, s, x, "q_a_proj", latent.q_rank), "query latent norm")
        with tape.group("mla_up_proj"):
            q = linear(tape, s, low, "q_b_proj", heads * d)
    else:
        q = linear(tape, s, x, "q_proj", heads * d)
    packed = linear(tape, s, x, "kv_a_proj_with_mqa", latent.kv_rank + latent.qk_rope)
    compressed, k_rope = parts(tape, packed, (("key-value latent", latent.kv_rank), ("key rotary part", latent.qk_rope)))
    kv = linear(tape, s, rms_norm(tape, s, compressed, "key-value latent norm"), "kv_b_proj", heads * (latent.qk_nope + latent.v_head))
    k_nope, v = parts(tape, kv, (("key part without position", heads * latent.qk_nope), ("value", heads * latent.v_head)))
    q_nope, q_rope = parts(tape, q, (("query part without position", heads * latent.qk_nope), ("query rotary part", heads * latent.qk_rope)))
    q_full = tape.run("join", (q_nope, rotary(tape, s, q_rope, "query")), heads * d, q.element, label="query with position")
    k_full = tape.run("join", (k_nope, rotary(tape, s, k_rope, "key")), heads * d, q.element, label="key with position")
    if s.kernel == "te-unfused":
        y = unfused_core(tape, s, q_full, k_full, v, heads, latent.v_head)
    elif s.kernel in FLASH_SAME_SIZE and latent.v_head < d:
        v = tape.run("pad value", (v,), heads * d, v.element, label="value padded to the query's head size")
        y = kernel(tape, s, q_full, k_full, v, heads, heads, d, d)
        y = tape.run("cut", (y,), heads * latent.v_head, y.element, label="attention output cut back")
    else:
        y = kernel(tape, s, q_full, k_full, v, heads, heads, d, latent.v_head)
        if s.kernel == "flash":  # its output lies as the query does, heads first, since that was put together from parts
            y = tape.run("order of heads", (y,), y.width, y.element, label="attention output, tokens first")
    return linear(tape, s, y, output_name(block), hidden)


def unfused_core(tape: Tape, s: Setting, q: Value, k: Value, v: Value, heads: float, dv: int) -> Value:
    """Score matrix in memory: softmax in 16 bit by Megatron's fused kernel, dropout mask and result (the 5 a s² b of Korthikanti et al.)."""
    with tape.group("core_attn"):
        raw = tape.run("scores", (q, k), heads, q.element, saves=(q, k), pairs=True, label="attention scores")
        soft = tape.run("softmax", (raw,), heads, q.element, pairs=True, saves_output=True, label="attention weights")
        kept = dropout(tape, s, soft, s.attention_dropout, "attention weights", pairs=True)
    y = tape.run("weights x value", (kept, v), heads * dv, q.element, saves=(kept, v), label="attention output heads first")
    return tape.run("transpose", (y,), heads * dv, q.element, label="attention output")
