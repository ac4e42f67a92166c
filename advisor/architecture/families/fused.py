"""Decoders with fused projections of before Llama: GPT-NeoX, GPT-J, CodeGen, GPT-Neo, Falcon, BLOOM, OPT, MPT.

Source: ``modeling_<family>.py`` of transformers 5.24; shapes and names checked by building on the meta device.
"""

from __future__ import annotations

from advisor.architecture.families.dense import Heads, Size, heads_of, size_of
from advisor.architecture.keys import Keys
from advisor.architecture.pieces import embedding, fused_attention, linear, norm, parameter, plain_mlp, split_attention
from advisor.architecture.shape import Architecture, Block, Tensor


def read(keys: Keys) -> Architecture:
    """The architecture, by family."""
    size = size_of(keys)
    return {"gpt_neox": _neox, "gptj": _gptj, "codegen": _gptj, "gpt_neo": _neo, "falcon": _falcon, "bloom": _bloom, "opt": _opt, "mpt": _mpt}[keys.model_type](
        keys, size
    )


def _block(
    size: Size,
    heads: Heads,
    width: int,
    tensors: tuple[Tensor, ...],
    *,
    norms: int = 2,
    parallel: bool = False,
    window: int | None = None,
    count: int | None = None,
) -> Block:
    return Block(
        "attention",
        size.layers if count is None else count,
        tensors,
        heads.number,
        heads.kv,
        heads.dim,
        heads.dim,
        width,
        gated=False,
        norms=norms,
        parallel=parallel,
        window=window,
    )


def _made(
    keys: Keys,
    size: Size,
    blocks: tuple[Block, ...],
    before: tuple[Tensor, ...],
    after: tuple[Tensor, ...],
    *,
    positions: int | None,
    rotary: bool,
    head_bias: bool = False,
    head: str = "lm_head",
) -> Architecture:
    lm_head = linear(head, size.hidden, size.vocab, "head", bias=head_bias)
    return Architecture(
        model_type=keys.model_type,
        hidden=size.hidden,
        vocab=size.vocab,
        tied=size.tied,
        max_positions=positions,
        norm="layernorm",
        activation=keys.word("activation_function", "hidden_act", "activation", default="gelu"),
        blocks=blocks,
        outer=(*before, *after, *(lm_head[1:] if size.tied else lm_head)),
        attention_dropout=keys.fraction("attention_dropout", "attn_pdrop"),
        hidden_dropout=keys.fraction("hidden_dropout", "resid_pdrop", "resid_dropout", "dropout"),
        rotary=rotary,
    )


def _neox(keys: Keys, size: Size) -> Architecture:
    heads = heads_of(keys, size.hidden)
    width = keys.size("intermediate_size")
    bias = keys.flag("attention_bias", default=True)
    tensors = (
        *fused_attention(size.hidden, heads.number, heads.number, heads.dim, names=("query_key_value", "dense"), bias=bias, out_bias=bias),
        *plain_mlp(size.hidden, width, names=("dense_h_to_4h", "dense_4h_to_h"), bias=True),
        *norm("input_layernorm", size.hidden, bias=True),
        *norm("post_attention_layernorm", size.hidden, bias=True),
    )
    block = _block(size, heads, width, tensors, parallel=keys.flag("use_parallel_residual", default=True))
    after = norm("final_layer_norm", size.hidden, bias=True)
    positions = keys.optional("max_position_embeddings")
    return _made(keys, size, (block,), embedding("embed_in", size.vocab, size.hidden), after, positions=positions, rotary=True)


def _gptj(keys: Keys, size: Size) -> Architecture:
    heads = heads_of(keys, size.hidden)
    width = keys.optional("n_inner") or 4 * size.hidden
    if keys.model_type == "codegen":
        attention = fused_attention(size.hidden, heads.number, heads.number, heads.dim, names=("qkv_proj", "out_proj"))
    else:
        attention = split_attention(size.hidden, heads.number, heads.number, heads.dim, names=("q_proj", "k_proj", "v_proj", "out_proj"))
    tensors = (*attention, *plain_mlp(size.hidden, width, names=("fc_in", "fc_out"), bias=True), *norm("ln_1", size.hidden, bias=True))
    block = _block(size, heads, width, tensors, norms=1, parallel=True)
    before, after = embedding("wte", size.vocab, size.hidden), norm("ln_f", size.hidden, bias=True)
    return _made(keys, size, (block,), before, after, positions=keys.optional("n_positions", "max_position_embeddings"), rotary=True, head_bias=True)


def _neo(keys: Keys, size: Size) -> Architecture:
    number = keys.size("num_heads", "num_attention_heads", most=65_536)
    heads = Heads(number, number, size.hidden // number)
    width = keys.optional("intermediate_size", "n_inner") or 4 * size.hidden
    window = keys.optional("window_size") or 256
    tensors = (
        *split_attention(size.hidden, number, number, heads.dim, names=("q_proj", "k_proj", "v_proj", "out_proj"), out_bias=True),
        *plain_mlp(size.hidden, width, names=("c_fc", "c_proj"), bias=True),
        *norm("ln_1", size.hidden, bias=True),
        *norm("ln_2", size.hidden, bias=True),
    )
    # attention_types alternates global and local layers; half of them are local in every published GPT-Neo
    full = (size.layers + 1) // 2
    counted = [(n, w) for n, w in ((full, None), (size.layers - full, window)) if n]
    positions = keys.size("max_position_embeddings", default=2048)
    before = (*embedding("wte", size.vocab, size.hidden), *parameter("wpe", (positions, size.hidden), "position"))
    blocks = tuple(_block(size, heads, width, tensors, window=w, count=n) for n, w in counted)
    return _made(keys, size, blocks, before, norm("ln_f", size.hidden, bias=True), positions=positions, rotary=False)


def _falcon(keys: Keys, size: Size) -> Architecture:
    number = keys.size("num_attention_heads", "n_head", most=65_536)
    new = keys.flag("new_decoder_architecture")
    if new:
        kv = keys.optional("num_kv_heads", "n_head_kv", most=65_536) or number
    else:
        keys.seen.add("num_kv_heads")
        kv = 1 if keys.flag("multi_query", default=True) else number
    parallel = keys.flag("parallel_attn", default=True)
    heads = Heads(number, kv, size.hidden // number)
    width = keys.optional("ffn_hidden_size") or 4 * size.hidden
    bias = keys.flag("bias")
    # Falcon-40B and 180B norm attention and MLP apart; Falcon-2-11B (num_ln_in_parallel_attn 1) and Falcon-7B share one
    two = not parallel or (new and (keys.optional("num_ln_in_parallel_attn", most=2) or 2) == 2)
    names = ("ln_attn", "ln_mlp") if new and two else ("input_layernorm", "post_attention_layernorm")[: 2 if two else 1]
    tensors = (
        *fused_attention(size.hidden, number, kv, heads.dim, names=("query_key_value", "dense"), bias=bias, out_bias=bias),
        *plain_mlp(size.hidden, width, names=("dense_h_to_4h", "dense_4h_to_h"), bias=bias),
        *(t for name in names for t in norm(name, size.hidden, bias=True)),
    )
    block = _block(size, heads, width, tensors, norms=len(names), parallel=parallel)
    before, after = embedding("word_embeddings", size.vocab, size.hidden), norm("ln_f", size.hidden, bias=True)
    return _made(keys, size, (block,), before, after, positions=keys.optional("max_position_embeddings"), rotary=not keys.flag("alibi"))


def _bloom(keys: Keys, size: Size) -> Architecture:
    heads = heads_of(keys, size.hidden)
    width = 4 * size.hidden
    tensors = (
        *fused_attention(size.hidden, heads.number, heads.number, heads.dim, names=("query_key_value", "dense"), bias=True, out_bias=True),
        *plain_mlp(size.hidden, width, names=("dense_h_to_4h", "dense_4h_to_h"), bias=True),
        *norm("input_layernorm", size.hidden, bias=True),
        *norm("post_attention_layernorm", size.hidden, bias=True),
    )
    before = (*embedding("word_embeddings", size.vocab, size.hidden), *norm("word_embeddings_layernorm", size.hidden, bias=True))
    positions = keys.optional("seq_length", "max_position_embeddings")
    return _made(keys, size, (_block(size, heads, width, tensors),), before, norm("ln_f", size.hidden, bias=True), positions=positions, rotary=False)


def _opt(keys: Keys, size: Size) -> Architecture:
    heads = heads_of(keys, size.hidden)
    width = keys.size("ffn_dim", "intermediate_size")
    bias, scale = keys.flag("enable_bias", default=True), keys.flag("layer_norm_elementwise_affine", default=True)
    project = keys.optional("word_embed_proj_dim") if keys.written("word_embed_proj_dim") else size.hidden
    before_norm = keys.flag("do_layer_norm_before", default=True)
    keys.seen.add("_remove_final_layer_norm")
    norms = tuple(t for name in ("self_attn_layer_norm", "final_layer_norm") for t in norm(name, size.hidden, bias=True)) if scale else ()
    tensors = (
        *split_attention(size.hidden, heads.number, heads.number, heads.dim, names=("q_proj", "k_proj", "v_proj", "out_proj"), bias=bias, out_bias=bias),
        *plain_mlp(size.hidden, width, names=("fc1", "fc2"), bias=bias),
        *norms,
    )
    positions = keys.size("max_position_embeddings", default=2048)
    word = project or size.hidden
    projections = (*linear("project_in", word, size.hidden, "other"), *linear("project_out", size.hidden, word, "other")) if word != size.hidden else ()
    before = (*embedding("embed_tokens", size.vocab, word), *parameter("embed_positions", (positions + 2, size.hidden), "position"), *projections)
    after = norm("final_layer_norm", size.hidden, bias=True) if before_norm and scale and not keys.flag("_remove_final_layer_norm") else ()
    made = _made(keys, size, (_block(size, heads, width, tensors),), before, after, positions=positions, rotary=False)
    if not size.tied and word != size.hidden:
        raise keys.wrong(("word_embed_proj_dim",), word, f"the hidden size {size.hidden:,} where the head is not tied")
    return made


def _mpt(keys: Keys, size: Size) -> Architecture:
    heads = heads_of(keys, size.hidden)
    inner = keys.section("attn_config")
    kv = heads.kv
    if inner is not None:
        kind = inner.word("attn_type", default="multihead_attention")
        kv = 1 if kind == "multiquery_attention" else (inner.optional("kv_n_heads", most=65_536) or kv)
    heads = Heads(heads.number, kv, heads.dim)
    ratio = keys.number("expansion_ratio", default=4)
    width = int(ratio * size.hidden)
    bias = not keys.flag("no_bias", default=True)
    alibi = inner is None or inner.flag("alibi", default=True)
    learned = keys.flag("learned_pos_emb") and keys.written("learned_pos_emb") and not alibi
    positions = keys.optional("max_seq_len", "max_position_embeddings")
    norms = tuple(t for name in ("norm_1", "norm_2") for t in norm(name, size.hidden))
    tensors = (
        *fused_attention(size.hidden, heads.number, kv, heads.dim, names=("Wqkv", "out_proj"), bias=bias, out_bias=bias),
        *plain_mlp(size.hidden, width, names=("up_proj", "down_proj"), bias=bias),
        *norms,
    )
    table = parameter("wpe", (positions, size.hidden), "position") if learned and positions else ()
    before = (*embedding("wte", size.vocab, size.hidden), *table)
    return _made(keys, size, (_block(size, heads, width, tensors),), before, norm("norm_f", size.hidden), positions=positions, rotary=False)
