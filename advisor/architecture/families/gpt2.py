"""GPT-2 and GPT-BigCode: learned positions, LayerNorm with bias, biases everywhere, a plain MLP, tied head.

Source: ``modeling_gpt2.py`` and ``modeling_gpt_bigcode.py`` of transformers 5.24. GPT-2's ``Conv1D`` layers are shown as ``[out, in]``.
"""

from __future__ import annotations

from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.pieces import embedding, fused_attention, linear, norm, parameter, plain_mlp
from advisor.architecture.shape import Architecture, Block


def read(keys: Keys) -> Architecture:
    """The architecture; GPT-BigCode's ``multi_query`` keeps one head of keys and values."""
    hidden = keys.required("n_embd", "hidden_size")
    layers = keys.required("n_layer", "num_hidden_layers", most=MOST_LAYERS)
    number = keys.size("n_head", "num_attention_heads", most=65_536)
    if hidden % number:
        raise keys.wrong(("n_head", "num_attention_heads"), number, f"a divisor of the hidden size {hidden:,}")
    dim = hidden // number
    kv = 1 if keys.model_type == "gpt_bigcode" and keys.flag("multi_query", default=True) else number
    width = keys.optional("n_inner", "intermediate_size") or 4 * hidden
    vocab = keys.size("vocab_size")
    positions = keys.size("n_positions", "max_position_embeddings", "n_ctx", default=1024)
    tied = keys.flag("tie_word_embeddings", default=True)
    tensors = (
        *fused_attention(hidden, number, kv, dim, names=("c_attn", "c_proj"), bias=True, out_bias=True),
        *plain_mlp(hidden, width, names=("c_fc", "c_proj"), bias=True),
        *norm("ln_1", hidden, bias=True),
        *norm("ln_2", hidden, bias=True),
    )
    block = Block("attention", layers, tensors, number, kv, dim, dim, width, gated=False)
    return Architecture(
        model_type=keys.model_type,
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        max_positions=positions,
        norm="layernorm",
        activation=keys.word("activation_function", default="gelu_new"),
        blocks=(block,),
        outer=(
            *embedding("wte", vocab, hidden),
            *parameter("wpe", (positions, hidden), "position"),
            *norm("ln_f", hidden, bias=True),
            *(() if tied else linear("lm_head", hidden, vocab, "head")),
        ),
        attention_dropout=keys.fraction("attn_pdrop"),
        hidden_dropout=keys.fraction("resid_pdrop"),
        rotary=False,
    )
