"""Encoder-decoder models: T5, mT5, UMT5, LongT5, BART, mBART, PLBART, MVP, Marian, Blenderbot, Pegasus, M2M-100, Whisper.

Source: ``modeling_<family>.py`` of transformers 5.24; shapes and names checked by building on the meta device. A decoder layer is one block
that has self attention, cross attention and MLP (``cross``).
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.pieces import embedding, gated_mlp, linear, norm, parameter, plain_mlp, split_attention
from advisor.architecture.shape import Architecture, Block, Tensor

T5 = ("t5", "mt5", "umt5", "longt5")
_BEHIND = ("layernorm_embedding",)  # on the embeddings alone: the layers norm what they give
# norms of each half outside its layers; Pegasus, M2M-100 and Blenderbot have a last one only
_OUTSIDE = {"bart": _BEHIND, "plbart": _BEHIND, "mvp": _BEHIND, "blenderbot-small": _BEHIND, "mbart": (*_BEHIND, "layer_norm"), "marian": ()}


def read(keys: Keys) -> Architecture:
    """The architecture."""
    return _t5(keys) if keys.model_type in T5 else _bart(keys)


def _t5(keys: Keys) -> Architecture:
    hidden, layers = keys.required("d_model"), keys.required("num_layers", most=MOST_LAYERS)
    decoding = (keys.optional("num_decoder_layers", most=MOST_LAYERS) if keys.written("num_decoder_layers") else None) or layers
    number, dim, width, vocab = keys.size("num_heads", most=65_536), keys.size("d_kv", most=65_536), keys.size("d_ff"), keys.size("vocab_size")
    gated = keys.word("feed_forward_proj", default="relu").startswith("gated-")
    tied = keys.flag("tie_word_embeddings", default=True)
    buckets = keys.size("relative_attention_num_buckets", default=32, most=1 << 20)
    attention = split_attention(hidden, number, number, dim, names=("q", "k", "v", "o"))
    feed = gated_mlp(hidden, width, names=("wi_0", "wi_1", "wo")) if gated else plain_mlp(hidden, width, names=("wi", "wo"))
    scale = norm("layer_norm", hidden)
    # the first layer of each half holds the table of relative positions (UMT5: every layer)
    table = parameter("relative_attention_bias", (buckets, number), "position")
    each = table if keys.model_type == "umt5" else ()
    encoder = Block("encoder", layers, (*attention, *feed, *each, *scale, *scale), number, number, dim, dim, width, gated)
    decoder = replace(
        encoder, kind="decoder-cross", count=decoding, tensors=(*attention, *attention, *feed, *each, *scale, *scale, *scale), norms=3, cross=True
    )
    return Architecture(
        model_type=keys.model_type,
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        max_positions=None,
        norm="rmsnorm",
        activation=_t5_activation(keys),
        blocks=(encoder, decoder),
        outer=(
            *embedding("shared", vocab, hidden),
            *(() if each else (*table, *table)),
            *norm("final_layer_norm", hidden),
            *norm("final_layer_norm", hidden),
            *(() if tied else linear("lm_head", hidden, vocab, "head")),
        ),
        attention_dropout=keys.fraction("dropout_rate"),
        hidden_dropout=keys.fraction("dropout_rate"),
        encoder_decoder=True,
        rotary=False,
    )


def _t5_activation(keys: Keys) -> str:
    """What follows ``gated-`` in feed_forward_proj; T5Config makes gelu_new of gated-gelu, whatever dense_act_fn says."""
    written = keys.word("feed_forward_proj", default="relu").removeprefix("gated-")
    keys.word("dense_act_fn", default="")
    return "gelu_new" if written == "gelu" else written


def _bart(keys: Keys) -> Architecture:
    hidden, vocab = keys.required("d_model"), keys.size("vocab_size")
    whisper = keys.model_type == "whisper"
    encoder = _layer(keys, hidden, "encoder", key_bias=not whisper)
    decoder = _layer(keys, hidden, "decoder", key_bias=not whisper)
    tied = keys.flag("tie_word_embeddings", default=True)
    if whisper:
        mels = keys.size("num_mel_bins", default=80)
        sources, targets = keys.size("max_source_positions", default=1500), keys.size("max_target_positions", default=448)
        before = (
            *parameter("conv1", (hidden, mels, 3), "other"),
            *parameter("conv1.bias", (hidden,), "other"),
            *parameter("conv2", (hidden, hidden, 3), "other"),
            *parameter("conv2.bias", (hidden,), "other"),
            *parameter("embed_positions", (sources, hidden), "position"),
            *parameter("embed_positions", (targets, hidden), "position"),
        )
        after = (*norm("layer_norm", hidden, bias=True), *norm("layer_norm", hidden, bias=True))
    else:
        targets = keys.size("max_position_embeddings", default=1024)
        learned = keys.model_type in ("bart", "mbart", "plbart", "mvp")  # two more rows than positions; the others have sines or just their positions
        table = parameter("embed_positions", (targets + 2 if learned else targets, hidden), "position")  # Pegasus holds its sines as a parameter
        before = () if keys.model_type == "m2m_100" else (*table, *table)
        own = _OUTSIDE.get(keys.model_type, ("layer_norm",))
        after = tuple(t for _ in range(2) for name in own for t in norm(name, hidden, bias=True))
    return Architecture(
        model_type=keys.model_type,
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        max_positions=targets,
        norm="layernorm",
        activation=keys.word("activation_function", default="gelu"),
        blocks=(encoder, decoder),
        outer=(
            *embedding("embed_tokens" if whisper else "shared", vocab, hidden),
            *before,
            *after,
            *(() if tied else linear("proj_out" if whisper else "lm_head", hidden, vocab, "head")),
        ),
        attention_dropout=keys.fraction("attention_dropout"),
        hidden_dropout=keys.fraction("dropout"),
        encoder_decoder=True,
        sources=keys.size("max_source_positions", default=1500) if whisper else 0,
        rotary=False,
    )


def _layer(keys: Keys, hidden: int, half: str, *, key_bias: bool) -> Block:
    layers = keys.required(f"{half}_layers", most=MOST_LAYERS)
    number, width = keys.size(f"{half}_attention_heads", most=65_536), keys.size(f"{half}_ffn_dim")
    if hidden % number:
        raise keys.wrong((f"{half}_attention_heads",), number, f"a divisor of the hidden size {hidden:,}")
    attention: tuple[Tensor, ...] = split_attention(
        hidden, number, number, hidden // number, names=("q_proj", "k_proj", "v_proj", "out_proj"), bias=True, out_bias=True
    )
    if not key_bias:
        attention = tuple(t for t in attention if t.name != "k_proj.bias")
    cross = half == "decoder"
    names = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm") if cross else ("self_attn_layer_norm", "final_layer_norm")
    tensors = (
        *attention,
        *(attention if cross else ()),
        *plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True),
        *(t for name in names for t in norm(name, hidden, bias=True)),
    )
    dim = hidden // number
    return Block("decoder-cross" if cross else "encoder", layers, tensors, number, number, dim, dim, width, gated=False, norms=len(names), cross=cross)
