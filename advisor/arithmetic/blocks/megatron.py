"""A Megatron-Core layer on TransformerEngine modules: what its autograd functions save, divided over tensor and sequence ranks.

Sources: TransformerEngine pytorch/module/layernorm_linear.py and linear.py (save_for_backward), Megatron-LM core/transformer and core/fusions.
Against Korthikanti et al. (arXiv 2205.05198, 34 s b h + 5 a s² b): norms fused with the linear that follows keep input and output; the gated
activation keeps both halves before it and the product behind it; no dropout masks where dropout is off.
"""

from __future__ import annotations

from advisor.architecture import Block, Experts
from advisor.arithmetic.blocks.latent import latent_attention, unfused_core
from advisor.arithmetic.blocks.mixer import mix
from advisor.arithmetic.blocks.operations import dropout, linear, parts, residual, tokens
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Size, Tape, Value


def megatron(tape: Tape, s: Setting, block: Block, x: Value, hidden: int) -> Value:
    """Norm and attention, norm and MLP (or experts); the regions between are divided too under sequence parallelism."""
    share = hidden / s.tensor if s.sequence else float(hidden)
    has_mlp = block.experts is not None or block.mlp_width > 0
    if block.mixer is not None:
        mixed = mix(tape, s, block, block.mixer, _norm(tape, x, "mixer norm"), share)
        x = residual(tape, x, dropout(tape, s, mixed, s.hidden_dropout, "mixer output"))  # core/ssm/mamba_layer.py mamba_bda
    elif block.heads:
        attended = _attention(tape, s, block, _norm(tape, x, "attention norm"), share)
        x = residual(tape, x, dropout(tape, s, attended, s.hidden_dropout, "attention output"))
    if not has_mlp:
        return x
    normed = _norm(tape, x, "MLP norm")
    y = _experts(tape, s, block, block.experts, normed, hidden, share) if block.experts is not None else _mlp(tape, s, block, normed, share)
    return residual(tape, x, dropout(tape, s, y, s.hidden_dropout, "MLP output"))


def _norm(tape: Tape, x: Value, name: str) -> Value:
    stats = (f"{name} statistic", 4, tokens(4.0 * x.width / max(x.width, 1)))
    with tape.group("layernorm"):
        return tape.run(name, (x,), x.width, x.element, saves=(x,), keeps=(stats,), weights=x.width, label=f"{name} output")


def _attention(tape: Tape, s: Setting, block: Block, x: Value, share: float) -> Value:
    if block.latent is not None:
        return latent_attention(tape, s, block, block.latent, x, share)
    d, heads, kv = block.head_dim, block.heads / s.tensor, max(block.kv_heads / s.tensor, 1)
    qkv = linear(tape, s, x, "linear_qkv", (heads + 2 * kv) * d)
    q, k, v = parts(tape, qkv, (("query", heads * d), ("key", kv * d), ("value", kv * d)))
    if s.rotary != "none":
        q, k = (tape.run(f"{t.name} rotary", (t,), t.width, t.element, forward=tokens(t.width * t.element), label=f"{t.name} with position") for t in (q, k))
    y = fused_core(tape, q, k, v, heads, d) if s.kernel in ("flash", "te-fused", "cudnn", "flex") else unfused_core(tape, s, q, k, v, heads, d)
    return linear(tape, s, y, "linear_proj", share)


def fused_core(tape: Tape, q: Value, k: Value, v: Value, heads: float, d: int) -> Value:
    """Fused attention of TransformerEngine (cuDNN or flash): query, key, value, output and fp32 softmax statistics."""
    lse = ("attention statistics", 4, tokens(4 * heads))
    temp = tokens(heads * d * 4 + heads * 4)
    return tape.run(
        "attention",
        (q, k, v),
        heads * d,
        q.element,
        saves=(q, k, v),
        saves_output=True,
        keeps=(lse,),
        backward=temp,
        kind="attention",
        label="attention output",
    )


def _mlp(tape: Tape, s: Setting, block: Block, x: Value, share: float, *, width: float | None = None) -> Value:
    f = (block.mlp_width if width is None else width) / s.tensor
    with tape.group("mlp"):
        up = linear(tape, s, x, "linear_fc1", 2 * f if block.gated else f)
        inner = tape.run("activation", (up,), f, up.element, saves=(up,), label="activation output")
        return linear(tape, s, inner, "linear_fc2", share)


def _experts(tape: Tape, s: Setting, block: Block, experts: Experts, x: Value, hidden: int, share: float) -> Value:
    """Router in fp32, tokens permuted to their experts, grouped products, and the weighted sum on the way back."""
    chosen, local = float(experts.chosen), experts.number / s.expert_ranks
    width = experts.width / s.expert_tensor
    per = chosen * share  # pairs' hidden elements of one token of the whole sequence on this rank
    scale = share / hidden
    with tape.group("moe"):
        logits = tape.run("router", (x,), experts.number * scale, 4, saves=(x,), weights=hidden * experts.number, label="router logits")
        keeps: tuple[tuple[str, int, Size], ...] = (("routing map", 1, tokens(experts.number * scale)),)
        probs = tape.run("router scores", (logits,), experts.number * scale, 4, saves_output=True, keeps=keeps, label="routing probabilities")
        pairs = tape.run("dispatch", (x,), per, x.element, keeps=(("permutation", 8, tokens(8 * chosen * scale)),), label="tokens by expert")
        with tape.group("moe_expert"):
            two = 2.0 if block.gated else 1.0
            up = linear(tape, s, pairs, "expert linear_fc1", two * chosen * width * scale, copies=chosen * scale, experts=local)
            with tape.group("moe_act"):
                inner = _weighted(tape, up, probs, chosen * width * scale, fused=block.gated)
            out = linear(tape, s, inner, "expert linear_fc2", per, copies=chosen * scale, experts=local)
        y = tape.run("combine", (out,), share, x.element, label="experts' sum")
        if experts.shared_width:
            common = _mlp(tape, s, block, x, share, width=experts.shared_width)
            y = tape.run("shared sum", (y, common), share, y.element, shares=True, label="MoE output")
    return y


def _weighted(tape: Tape, up: Value, probs: Value, width: float, *, fused: bool) -> Value:
    """The activation times the routing probabilities: one kernel for gated experts; else an activation, a product in fp32 and its cast.

    Source: megatron/core/transformer/moe/experts.py ``bias_act_func`` (d98e8a64): ``weighted_bias_swiglu_impl`` or, without a gate, the plain path.
    """
    if fused:
        return tape.run("expert activation", (up, probs), width, up.element, saves=(up, probs), label="expert activation output")
    active = tape.run("expert activation", (up,), width, up.element, saves=(up,), label="expert activation before its weight")
    product = tape.run("routing weight", (active, probs), width, 4, saves=(active, probs), label="weighted activation in fp32")
    return tape.run("weight cast", (product,), width, up.element, label="expert activation output")
