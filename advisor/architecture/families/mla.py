"""Multi-head latent attention: DeepSeek-V2 and V3, Kimi-K2, Moonlight, GLM-4-MoE-Lite.

Source: ``modeling_deepseek_v2.py``, ``modeling_deepseek_v3.py``, ``modeling_glm4_moe_lite.py`` of transformers 5.24; arXiv 2405.04434.
transformers leaves the next-token-prediction layers (MTP) out; Megatron builds them, see :attr:`Architecture.mtp`.
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.architecture.families.dense import Heads, Traits, assembled, mlp, norms, size_of
from advisor.architecture.families.experts import Routed
from advisor.architecture.families.moe import Sparse, routed_of, sparse_ffn, sparse_layers
from advisor.architecture.keys import Keys
from advisor.architecture.layers import grouped
from advisor.architecture.pieces import linear, norm
from advisor.architecture.shape import Architecture, Block, Experts, Latent, Tensor

_TRAITS = Traits(mlp_bias=False)
_FAMILY = Sparse(_TRAITS, number=("n_routed_experts", "num_experts", "num_local_experts"), shared="number", shared_key="n_shared_experts")


def read(keys: Keys) -> Architecture:
    """The architecture; the first dense layers are a block of their own."""
    size = size_of(keys)
    number = keys.size("num_attention_heads", most=65_536)
    keys.seen.update(("num_key_value_heads", "head_dim", "qk_head_dim", "n_group", "topk_group", "ep_size"))
    latent = latent_of(keys)
    routed = routed_of(keys, _FAMILY) if keys.raw("n_routed_experts", "num_experts") else None
    sparse = sparse_layers(keys, size.layers) if routed else [False] * size.layers
    # with latent attention every head has its own keys and values
    heads = Heads(number, number, latent.qk_nope + latent.qk_rope)
    blocks = grouped(sparse, lambda kind, count: _block(keys, size.hidden, heads, latent, routed if kind else None, count))
    made = assembled(keys, _TRAITS, size, blocks)
    predicted = keys.optional("num_nextn_predict_layers", least=0, most=100) if keys.source == "megatron" else None
    return replace(made, mtp=(prediction_block(blocks[-1], size.hidden, predicted),)) if predicted else made


def latent_of(keys: Keys) -> Latent:
    """Ranks and head sizes."""
    q_rank = keys.optional("q_lora_rank", least=0) if keys.written("q_lora_rank") or "q_lora_rank" not in keys.config else None
    return Latent(
        q_rank or None,
        keys.size("kv_lora_rank"),
        keys.size("qk_nope_head_dim", least=0, most=65_536),
        keys.size("qk_rope_head_dim", least=0, most=65_536),
        keys.size("v_head_dim", most=65_536),
    )


def latent_attention(keys: Keys, hidden: int, heads: Heads, latent: Latent) -> tuple[Tensor, ...]:
    """Down and up projections of queries, of keys and values together, and the output projection."""
    bias = keys.flag("attention_bias")
    query = heads.number * heads.dim
    queries = (
        (
            *linear("q_a_proj", hidden, latent.q_rank, "attention", bias=bias),
            *norm("q_a_layernorm", latent.q_rank),
            *linear("q_b_proj", latent.q_rank, query, "attention"),
        )
        if latent.q_rank
        else linear("q_proj", hidden, query, "attention")
    )
    return (
        *queries,
        *linear("kv_a_proj_with_mqa", hidden, latent.kv_rank + latent.qk_rope, "attention", bias=bias),
        *norm("kv_a_layernorm", latent.kv_rank),
        *linear("kv_b_proj", latent.kv_rank, heads.number * (latent.qk_nope + latent.v_head), "attention"),
        *linear("o_proj", heads.number * latent.v_head, hidden, "attention", bias=bias),
    )


def _block(keys: Keys, hidden: int, heads: Heads, latent: Latent, routed: Routed | None, count: int) -> Block:
    width = 0 if routed else keys.size("intermediate_size")
    ffn = sparse_ffn(keys, _FAMILY, hidden, routed) if routed else mlp(keys, _TRAITS, hidden, width)
    return Block(
        kind="attention",
        count=count,
        tensors=(*latent_attention(keys, hidden, heads, latent), *ffn, *norms(keys, _TRAITS, hidden)),
        heads=heads.number,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        v_head_dim=latent.v_head,
        mlp_width=width,
        gated=keys.gated is not False,
        experts=Experts(routed.number, routed.chosen, routed.width, routed.shared_width) if routed else None,
        latent=latent,
    )


def prediction_block(last: Block, hidden: int, count: int) -> Block:
    """A next-token-prediction layer: norms of hidden state and embedding, their projection together, a layer like the last, a final norm.

    Embedding and head are the model's own. Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2); Megatron-LM ``multi_token_prediction.py``.
    """
    extra = (*norm("enorm", hidden), *norm("hnorm", hidden), *linear("eh_proj", 2 * hidden, hidden, "other"), *norm("final_layernorm", hidden))
    return replace(last, count=count, tensors=(*last.tensors, *extra), norms=last.norms + 3)
