"""The families of Llama-like decoders and where each differs. Source as in :mod:`advisor.architecture.families.dense`."""

from __future__ import annotations

from advisor.architecture.families.dense import Traits, decoder
from advisor.architecture.keys import Keys
from advisor.architecture.shape import Architecture

FOUR_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
GELU = "gelu_pytorch_tanh"

NO_BIAS = Traits(qkv_bias=False, out_bias=False, mlp_bias=False)
QWEN2 = Traits(qkv_bias=True, out_bias=False, mlp_bias=False)
QWEN3 = Traits(mlp_bias=False, qk_norm="head")
GEMMA = Traits(mlp_bias=False, activation=GELU)
GEMMA2 = Traits(mlp_bias=False, norms=FOUR_NORMS, activation=GELU)
GEMMA3 = Traits(mlp_bias=False, norms=FOUR_NORMS, qk_norm="head", activation=GELU)
OLMO2 = Traits(mlp_bias=False, norms=POST_NORMS, qk_norm="full")
COHERE = Traits(mlp_bias=False, norms=("input_layernorm",), layernorm=True, parallel=True, qk_norm="per-head", qk_norm_if="use_qk_norm")

FAMILIES: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": NO_BIAS,
    "ministral": NO_BIAS,
    "ministral3": NO_BIAS,
    "qwen2": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "mimo": QWEN2,  # hub code: Qwen2 with next-token-prediction layers beside it
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "vaultgemma": Traits(mlp_bias=False, norms=("input_layernorm", "pre_feedforward_layernorm"), activation=GELU),
    "gemma3_text": GEMMA3,
    "phi3": Traits(qkv_bias=False, out_bias=False, mlp_bias=False, mlp="fused", attention_names=("qkv_proj", "o_proj")),
    "granite": Traits(),
    "smollm3": Traits(),
    "olmo": Traits(mlp_bias=False, norm_free=True, layernorm=True),
    "olmo2": OLMO2,
    "olmo3": OLMO2,
    "exaone4": Traits(qkv_bias=False, out_bias=False, mlp_bias=False, norms=POST_NORMS, qk_norm="head"),
    "cohere": COHERE,
    "cohere2": Traits(mlp_bias=False, norms=("input_layernorm",), layernorm=True, parallel=True),
    "nemotron": Traits(layernorm=True, norm_bias=True, mlp="plain", activation="relu2"),
    "arcee": Traits(mlp="plain", activation="relu2"),
    "starcoder2": Traits(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        layernorm=True,
        norm_bias=True,
        mlp="plain",
        mlp_names=("c_fc", "c_proj"),
        activation=GELU,
    ),
    "stablelm": Traits(qkv_bias="use_qkv_bias", out_bias=False, mlp_bias=False, layernorm=True, norm_bias=True, parallel_if="use_parallel_residual"),
    "glm": Traits(out_bias=False, mlp_bias=False, mlp="fused"),
    "glm4": Traits(
        out_bias=False, mlp_bias=False, mlp="fused", norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
    ),
    "apertus": Traits(
        mlp="plain", norms=("attention_layernorm", "feedforward_layernorm"), qk_norm="head", activation="xielu", extra=(("alpha_p", 1), ("alpha_n", 1))
    ),
    "ernie4_5": Traits(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "seed_oss": Traits(out_bias="attention_out_bias"),
    "helium": Traits(out_bias=False),
    "hunyuan_v1_dense": Traits(qk_norm="head", mlp_bias=False, qk_names=("query_layernorm", "key_layernorm")),
    "phi": Traits(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norms=("input_layernorm",),
        layernorm=True,
        norm_bias=True,
        mlp="plain",
        mlp_names=("fc1", "fc2"),
        attention_names=("q_proj", "k_proj", "v_proj", "dense"),
        parallel=True,
        final="final_layernorm",
        head_bias=True,
        activation="gelu_new",
    ),
    # code in the hub's repositories
    "internlm": Traits(qkv_bias="bias", out_bias="bias", mlp_bias=False),
    "internlm2": Traits(
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias=False,
        attention_names=("wqkv", "wo"),
        mlp_names=("w1", "w3", "w2"),
        norms=("attention_norm", "ffn_norm"),
        embedding="tok_embeddings",
        head="output",
    ),
    "baichuan": Traits(qkv_bias=False, out_bias=False, mlp_bias=False, attention_names=("W_pack", "o_proj")),
    "chatglm": Traits(
        qkv_bias="add_qkv_bias",
        out_bias="add_bias_linear",
        mlp_bias="add_bias_linear",
        mlp="fused",
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        attention_names=("query_key_value", "dense"),
        embedding="word_embeddings",
        final="final_layernorm",
        head="output_layer",
    ),
    "qwen": Traits(
        qkv_bias=True,
        out_bias=False,
        mlp_bias=False,
        mlp_names=("w2", "w1", "c_proj"),
        attention_names=("c_attn", "c_proj"),
        norms=("ln_1", "ln_2"),
        embedding="wte",
        final="ln_f",
        half_width=True,
    ),
}


def read(keys: Keys) -> Architecture:
    """The architecture of a Llama-like decoder."""
    return decoder(keys, FAMILIES.get(keys.model_type, FAMILIES["llama"]))
