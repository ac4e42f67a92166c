"""Tiny jobs, and what two witnesses say of a step that really runs on the CPU."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

SHAPE = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256}
HEADS = {"head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1, "norm_topk_prob": True}
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 14}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SHAPE},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64},
    "qwen3": {"model_type": "qwen3", **SHAPE, **HEADS, "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", **SHAPE, **HEADS, "sliding_window": 16},
    "mixtral": {"model_type": "mixtral", **SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"model_type": "qwen3_moe", **SHAPE, **HEADS, **EXPERTS},
    "bert": {"model_type": "bert", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256},
    "t5": {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256},
    "qwen2_vl": {
        "model_type": "qwen2_vl", "image_token_id": 9, "video_token_id": 10, "vision_start_token_id": 11, "vision_end_token_id": 12,
        "text_config": {**SHAPE, "model_type": "qwen2_vl_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}},
        "vision_config": {"model_type": "qwen2_vl", "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
    },
    "llava": {
        "model_type": "llava", "image_token_index": 9, "vision_feature_layer": -2, "image_seq_length": 4,
        "text_config": {**SHAPE, "model_type": "llama"}, "vision_config": {**TOWER, "model_type": "clip_vision_model", "image_size": 28},
    },
    "gemma3": {
        "model_type": "gemma3", "image_token_index": 9, "mm_tokens_per_image": 4,
        "text_config": {**SHAPE, **HEADS, "model_type": "gemma3_text", "sliding_window": 16},
        "vision_config": {**TOWER, "model_type": "siglip_vision_model", "image_size": 56},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The machine is shared, and these models are tiny."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny() -> Callable[..., Any]:
    """``tiny("llama", batch={...})``: the resolved job of a tiny model in fp32, two sequences of 32 tokens."""

    def make(family: str, **sections: Any) -> Any:
        from advisor.job import read_job
        from advisor.run import resolve

        job: dict[str, Any] = {
            "version": 1,
            "model": {"config": CONFIGS[family]},
            "method": {"kind": "full"},
            "precision": {"weights": "fp32", "compute": "fp32", "mixed": "none"},
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "batch": {"micro_batch": 2, "seq_len": 32, "gradient_accumulation": 1},
            "activations": {"checkpointing": "none", "attention": "sdpa"},
            "framework": {"name": "custom"},
            "hardware": {"gpu": "a100-80gb"},
        }
        for section, values in sections.items():
            job[section] = {**job.get(section, {}), **values} if isinstance(values, dict) else values
        return resolve(read_job(job))

    return make
