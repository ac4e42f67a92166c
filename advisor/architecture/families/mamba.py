"""State-space, convolution and linear-attention mixers: their tensors.

Source: ``modeling_mamba.py``, ``modeling_mamba2.py``, ``modeling_lfm2.py``, ``modeling_qwen3_next.py``, ``modeling_qwen3_5.py`` of
transformers 5.24; Mamba (arXiv 2312.00752), Mamba-2 (arXiv 2405.21060), Gated DeltaNet (arXiv 2412.06464).
"""

from __future__ import annotations

from advisor.architecture.keys import Keys
from advisor.architecture.pieces import linear, norm, parameter
from advisor.architecture.shape import Mixer, Tensor


def selective(hidden: int, inner: int, state: int, conv: int, rank: int, *, bias: bool, conv_bias: bool, normed: bool = False) -> tuple[Tensor, ...]:
    """Mamba 1: ``inner`` channels, ``state`` values each; ``normed``: Jamba's norms on step, B and C."""
    norms = (*norm("dt_layernorm", rank), *norm("b_layernorm", state), *norm("c_layernorm", state)) if normed else ()
    return (
        *parameter("A_log", (inner, state), "mixer"),
        *parameter("D", (inner,), "mixer"),
        *parameter("conv1d", (inner, 1, conv), "mixer"),
        *(parameter("conv1d.bias", (inner,), "mixer") if conv_bias else ()),
        *linear("in_proj", hidden, 2 * inner, "mixer", bias=bias),
        *linear("x_proj", inner, rank + 2 * state, "mixer"),
        *linear("dt_proj", rank, inner, "mixer", bias=True),
        *linear("out_proj", inner, hidden, "mixer", bias=bias),
        *norms,
    )


def selective_of(keys: Keys, hidden: int) -> tuple[Mixer, tuple[Tensor, ...]]:
    """Mamba 1 from Mamba's, Falcon-Mamba's or Jamba's keys. ``time_step_rank`` "auto" is the hidden size over 16, rounded up."""
    jamba = keys.model_type == "jamba"
    inner = None if jamba else keys.optional("intermediate_size") if keys.written("intermediate_size") else None
    inner = inner or int(keys.number("mamba_expand" if jamba else "expand", default=2) * hidden)
    state = keys.size(*(("mamba_d_state",) if jamba else ("state_size", "d_state")), default=16)
    conv = keys.size(*(("mamba_d_conv",) if jamba else ("conv_kernel", "d_conv")), default=4, most=65_536)
    name = "mamba_dt_rank" if jamba else "time_step_rank"
    keys.seen.add(name)
    rank = keys.optional(name) if keys.config.get(name) not in (None, "auto") else -(-hidden // 16)
    bias = keys.flag("mamba_proj_bias" if jamba else "use_bias")
    conv_bias = keys.flag("mamba_conv_bias" if jamba else "use_conv_bias", default=True)
    tensors = selective(hidden, inner, state, conv, rank or 1, bias=bias, conv_bias=conv_bias, normed=jamba)
    return Mixer("mamba", inner, state, 1, conv), tensors


def structured(hidden: int, mixer: Mixer, *, bias: bool, conv_bias: bool, normed: bool = True) -> tuple[Tensor, ...]:
    """Mamba 2: one ``in_proj`` gives gate, inner, B and C of every group, and the step of every head."""
    channels = mixer.inner + 2 * mixer.groups * mixer.state
    return (
        *parameter("dt_bias", (mixer.heads,), "mixer"),
        *parameter("A_log", (mixer.heads,), "mixer"),
        *parameter("D", (mixer.heads,), "mixer"),
        *parameter("conv1d", (channels, 1, mixer.conv), "mixer"),
        *(parameter("conv1d.bias", (channels,), "mixer") if conv_bias else ()),
        *linear("in_proj", hidden, mixer.inner + channels + mixer.heads, "mixer", bias=bias),
        *(norm("norm", mixer.inner) if normed else ()),
        *linear("out_proj", mixer.inner, hidden, "mixer", bias=bias),
    )


def structured_of(keys: Keys, hidden: int) -> tuple[Mixer, tuple[Tensor, ...]]:
    """Mamba 2 from the keys of Mamba 2, Nemotron-H, Bamba, Granite 4 or Falcon-H1."""
    prefixed = keys.model_type in ("granitemoehybrid", "bamba", "falcon_h1")
    keys.seen.update(("mamba_expand", "expand", "mamba_d_ssm", "chunk_size", "mamba_chunk_size", "mamba_d_head", "mamba_head_dim", "head_dim"))
    number = keys.size(*(("mamba_n_heads",) if prefixed else ("mamba_num_heads", "num_heads")), most=1 << 20)
    if prefixed:
        inner = (keys.optional("mamba_d_ssm") if keys.model_type == "falcon_h1" else None) or int(keys.number("mamba_expand", default=2) * hidden)
        if keys.config.get("mamba_d_head") not in (None, "auto"):
            inner = number * keys.size("mamba_d_head", most=1 << 20)
        state, groups, conv = keys.size("mamba_d_state"), keys.size("mamba_n_groups", default=1), keys.size("mamba_d_conv", default=4, most=65_536)
        bias, conv_bias = keys.flag("mamba_proj_bias"), keys.flag("mamba_conv_bias", default=True)
        normed = keys.flag("mamba_rms_norm") if keys.model_type == "falcon_h1" else True
    else:
        inner = number * keys.size(*(("mamba_head_dim",) if keys.model_type == "nemotron_h" else ("head_dim",)), most=1 << 20, default=64)
        state, groups = keys.size("ssm_state_size", "state_size", default=128), keys.size("n_groups", default=8)
        conv = keys.size("conv_kernel", default=4, most=65_536)
        bias = keys.flag("mamba_proj_bias" if keys.model_type == "nemotron_h" else "use_bias")
        conv_bias, normed = keys.flag("use_conv_bias", default=True), True
    mixer = Mixer("mamba2", inner, state, number, conv, groups)
    return mixer, structured(hidden, mixer, bias=bias, conv_bias=conv_bias, normed=normed)


def short_convolution(hidden: int, conv: int, *, bias: bool) -> tuple[Mixer, tuple[Tensor, ...]]:
    """LFM2's gated short convolution."""
    tensors = (
        *parameter("conv", (hidden, 1, conv), "mixer"),
        *(parameter("conv.bias", (hidden,), "mixer") if bias else ()),
        *linear("in_proj", hidden, 3 * hidden, "mixer", bias=bias),
        *linear("out_proj", hidden, hidden, "mixer", bias=bias),
    )
    return Mixer("short-conv", hidden, conv, 1, conv), tensors


def delta_of(keys: Keys, hidden: int) -> tuple[Mixer, tuple[Tensor, ...]]:
    """Gated DeltaNet of Qwen3-Next (projections fused in two) and Qwen3.5 (in four). ``state`` is a key head's size."""
    key_heads, value_heads = keys.size("linear_num_key_heads", most=65_536), keys.size("linear_num_value_heads", most=65_536)
    key_dim, value_dim = keys.size("linear_key_head_dim", most=65_536), keys.size("linear_value_head_dim", most=65_536)
    conv = keys.size("linear_conv_kernel_dim", default=4, most=65_536)
    key, value = key_heads * key_dim, value_heads * value_dim
    channels = 2 * key + value
    if keys.model_type == "qwen3_next":
        projections = (*linear("in_proj_qkvz", hidden, channels + value, "mixer"), *linear("in_proj_ba", hidden, 2 * value_heads, "mixer"))
    else:
        projections = (
            *linear("in_proj_qkv", hidden, channels, "mixer"),
            *linear("in_proj_z", hidden, value, "mixer"),
            *linear("in_proj_b", hidden, value_heads, "mixer"),
            *linear("in_proj_a", hidden, value_heads, "mixer"),
        )
    tensors = (
        *parameter("dt_bias", (value_heads,), "mixer"),
        *parameter("A_log", (value_heads,), "mixer"),
        *parameter("conv1d", (channels, 1, conv), "mixer"),
        *projections,
        *norm("norm", value_dim),
        *linear("out_proj", value, hidden, "mixer"),
    )
    return Mixer("gated-delta", value, key_dim, value_heads, conv, key_heads), tensors
