"""Tensors of the usual parts of a layer, by Hugging Face's leaf names.

Conventions: a linear layer's shape is ``[out, in]`` (GPT-2's ``Conv1D`` stores the transpose; it counts as linear because PEFT and
bitsandbytes treat it so). A bias is a tensor of its own, ``<layer>.bias``, with its layer's role and ``linear=False``.
"""

from __future__ import annotations

from advisor.architecture.shape import Role, Tensor


def linear(name: str, inp: int, out: int, role: Role, *, bias: bool = False, times: int = 1) -> tuple[Tensor, ...]:
    """Weight ``[out, in]`` and, where it has one, bias ``[out]``."""
    weight = Tensor(name, (out, inp), role, True, times)
    return (weight, Tensor(f"{name}.bias", (out,), role, False, times)) if bias else (weight,)


def parameter(name: str, shape: tuple[int, ...], role: Role, *, times: int = 1) -> tuple[Tensor, ...]:
    """A bare parameter: neither an adapter nor a quantiser touches it."""
    return (Tensor(name, shape, role, False, times),)


def norm(name: str, size: int, *, bias: bool = False) -> tuple[Tensor, ...]:
    """Scale of a norm and, for LayerNorm, its shift."""
    scale = Tensor(name, (size,), "norm", False)
    return (scale, Tensor(f"{name}.bias", (size,), "norm", False)) if bias else (scale,)


def embedding(name: str, rows: int, width: int) -> tuple[Tensor, ...]:
    """A token table ``[vocab, hidden]``."""
    return (Tensor(name, (rows, width), "embedding", False),)


def split_attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    bias: bool = False,
    out_bias: bool = False,
) -> tuple[Tensor, ...]:
    """Query, key, value and output projections as four layers."""
    q, k, v, o = names
    return (
        *linear(q, hidden, heads * head_dim, "attention", bias=bias),
        *linear(k, hidden, kv_heads * head_dim, "attention", bias=bias),
        *linear(v, hidden, kv_heads * head_dim, "attention", bias=bias),
        *linear(o, heads * head_dim, hidden, "attention", bias=out_bias),
    )


def fused_attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int, *, names: tuple[str, str], bias: bool = False, out_bias: bool = False
) -> tuple[Tensor, ...]:
    """Query, key and value in one layer, and the output projection."""
    return (
        *linear(names[0], hidden, (heads + 2 * kv_heads) * head_dim, "attention", bias=bias),
        *linear(names[1], heads * head_dim, hidden, "attention", bias=out_bias),
    )


def gated_mlp(
    hidden: int, width: int, *, names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"), bias: bool = False, role: Role = "mlp"
) -> tuple[Tensor, ...]:
    """A gated MLP as three layers, or with gate and up fused in one where two names are given."""
    if len(names) == 2:
        return (*linear(names[0], hidden, 2 * width, role, bias=bias), *linear(names[1], width, hidden, role, bias=bias))
    return (
        *linear(names[0], hidden, width, role, bias=bias),
        *linear(names[1], hidden, width, role, bias=bias),
        *linear(names[2], width, hidden, role, bias=bias),
    )


def plain_mlp(hidden: int, width: int, *, names: tuple[str, str], bias: bool = False, role: Role = "mlp") -> tuple[Tensor, ...]:
    """Up and down projection with an activation between."""
    return (*linear(names[0], hidden, width, role, bias=bias), *linear(names[1], width, hidden, role, bias=bias))
