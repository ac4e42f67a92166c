"""Families: names and shapes of tensors, what the job overrides, and what is said of what was not understood."""

from typing import Any

import pytest

from advisor.architecture import Architecture, of_model, read
from advisor.architecture.families.experts import apart
from advisor.architecture.tensor_shapes import tensor_shapes
from advisor.job import Model

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
}


def known(name: str) -> Architecture:
    architecture = of_model(Model(name=name))
    assert architecture is not None
    return architecture


def shapes(architecture: Architecture, block: int = 0) -> dict[str, tuple[int, ...]]:
    return {t.name: t.shape for t in architecture.blocks[block].tensors}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("qwen2", {"q_proj": (64, 64), "q_proj.bias": (64,), "k_proj": (32, 64), "down_proj": (64, 96)}),
        ("qwen3", {"q_norm": (128,)}),
        ("hunyuan_v1_dense", {"query_layernorm": (16,)}),
        ("olmo2", {"q_norm": (64,), "k_norm": (32,)}),
        ("phi3", {"qkv_proj": (128, 64), "gate_up_proj": (192, 64)}),
        ("internlm2", {"wqkv": (128, 64), "w2": (64, 96)}),
        ("qwen", {"c_attn": (128, 64), "c_attn.bias": (128,), "w1": (48, 64)}),
        ("baichuan", {"W_pack": (128, 64)}),
        ("starcoder2", {"c_fc": (96, 64), "c_fc.bias": (96,), "input_layernorm.bias": (64,)}),
    ],
)
def test_names_and_shapes_are_those_of_the_modelling_code(kind: str, expected: dict[str, tuple[int, ...]]) -> None:
    found = shapes(read({**SMALL, "model_type": kind}))
    assert {name: found.get(name) for name in expected} == expected


def test_experts_are_fused_parameters_in_transformers_5_and_layers_in_4() -> None:
    five = known("mistralai/Mixtral-8x7B-v0.1")
    four = of_model(Model(name="mistralai/Mixtral-8x7B-v0.1"), transformers="4.48.1")
    assert four is not None
    assert not [t for t in five.blocks[0].tensors if t.role == "expert" and t.linear]
    names = {t.name: t for t in four.blocks[0].tensors if t.role == "expert"}
    assert set(names) == {"w1", "w2", "w3"}
    assert names["w1"].linear
    assert names["w1"].times == 8
    assert names["w1"].shape == (14336, 4096)
    assert four.parameters == five.parameters
    assert ("gate_up_proj", (8, 28672, 4096), 32) in tensor_shapes(five)
    assert ("w2", (4096, 14336), 256) in tensor_shapes(four)


def test_families_that_always_fused_their_experts_stay_fused() -> None:
    assert apart(known("openai/gpt-oss-20b")) is known("openai/gpt-oss-20b")


def test_shapes_add_up_to_the_parameters() -> None:
    for name in ("deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b", "Qwen/Qwen2.5-VL-7B-Instruct", "google/gemma-3n-E4B-it"):
        total = 0
        for _, shape, count in tensor_shapes(known(name)):
            size = 1
            for side in shape:
                size *= side
            total += size * count
        assert total == known(name).parameters


def test_latent_attention_keeps_its_ranks() -> None:
    block = known("deepseek-ai/DeepSeek-V3").blocks[1]
    assert block.latent is not None
    assert (block.latent.q_rank, block.latent.kv_rank, block.latent.qk_rope) == (1536, 512, 64)
    assert block.head_dim == 192
    assert block.v_head_dim == 128
    assert block.experts is not None
    assert (block.experts.number, block.experts.chosen, block.experts.shared_width) == (256, 8, 2048)
    lite = known("deepseek-ai/DeepSeek-V2-Lite").blocks[0].latent
    assert lite is not None
    assert lite.q_rank is None


def test_megatron_builds_the_prediction_layers_and_takes_no_size_from_transformers() -> None:
    config = {
        "model_type": "deepseek_v3", **SMALL,
        "kv_lora_rank": 16, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "n_shared_experts": 1,
    }  # fmt: skip
    here, there = read(config), read(config, source="megatron")
    assert not here.mtp
    assert there.mtp[0].count == 1
    assert there.parameters == here.parameters + there.mtp[0].parameters
    hybrid = {
        "model_type": "nemotron_h",
        **SMALL,
        "hybrid_override_pattern": "M*",
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 16,
        "n_groups": 2,
    }
    assert read(hybrid, source="megatron").blocks[1].head_dim == 16
    assert read(hybrid).blocks[1].head_dim == 128  # NemotronHConfig's own default


def test_the_job_says_whether_the_mlp_has_a_gate() -> None:
    gated, plain = (read({**SMALL, "model_type": "llama"}, mlp=kind) for kind in ("gated", "plain"))
    assert gated.blocks[0].gated
    assert not plain.blocks[0].gated
    assert gated.parameters - plain.parameters == 2 * 64 * 96


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "like Llama"),
        ({"num_local_experts": 4, "num_experts_per_tok": 2}, "with experts"),
        ({"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}, "latent"),
    ],
)
def test_an_unknown_family_is_read_by_its_keys_and_said(more: dict[str, Any], says: str) -> None:
    architecture = read({**SMALL, **more, "model_type": "unheard-of"})
    assert "'unheard-of' has no reader" in architecture.unread[0]
    assert says in architecture.unread[0]


def test_only_the_text_of_an_unknown_model_that_sees_is_read_and_said() -> None:
    architecture = read({"model_type": "unheard-of-vl", "text_config": {**SMALL, "model_type": "qwen3"}, "vision_config": {"depth": 3}})
    assert "missing from every figure" in architecture.unread[0]
    assert architecture.blocks[0].qk_norm


def test_keys_that_may_matter_are_listed() -> None:
    assert "mystery_heads" in read({**SMALL, "model_type": "llama", "mystery_heads": 8}).unread
    assert not read({**SMALL, "model_type": "llama", "bos_token_id": 5}).unread


def test_defaults_of_the_config_class_are_taken_and_said() -> None:
    architecture = read({k: v for k, v in SMALL.items() if k != "num_key_value_heads"} | {"model_type": "mistral", "num_attention_heads": 16})
    assert architecture.blocks[0].kv_heads == 8
    assert "num_key_value_heads" in architecture.assumed[0]
    null = read({**SMALL, "model_type": "mistral", "num_key_value_heads": None})
    assert null.blocks[0].kv_heads == 4


def test_a_classifier_has_a_score_in_place_of_the_head() -> None:
    architecture = read({**SMALL, "model_type": "llama", "architectures": ["LlamaForSequenceClassification"], "num_labels": 1, "tie_word_embeddings": False})
    assert architecture.classes == 1
    assert architecture.head_parameters == 0
    assert next(t.shape for t in architecture.outer if t.name == "score") == (1, 64)


def test_towers_are_apart_from_the_text() -> None:
    architecture = known("Qwen/Qwen2.5-VL-7B-Instruct")
    assert architecture.layers == 28
    assert architecture.vision[0].count == 32
    assert architecture.vision_hidden == 1280
    assert any(t.role == "projector" for t in architecture.outer)


def test_windows_and_softcaps() -> None:
    gemma = known("google/gemma-2-9b")
    assert {b.window for b in gemma.blocks} == {4096, None}
    assert gemma.softcap_logits == 30.0
    assert gemma.softcap_attention == 50.0
    assert {b.window for b in read({**SMALL, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}).blocks} == {None}


def test_gemma_4_has_wider_heads_on_full_attention_and_its_towers_are_counted() -> None:
    text = {**SMALL, "num_hidden_layers": 6, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    alone = read({"model_type": "gemma4", "text_config": text})
    architecture = read({"model_type": "gemma4", "text_config": text, "vision_config": {}, "audio_config": {}})
    slides, full = architecture.blocks
    assert (slides.head_dim, full.head_dim, full.kv_heads, slides.count, full.count) == (256, 512, 1, 5, 1)
    assert "v_proj" not in {t.name for t in full.tensors}
    assert alone.vision == ()
    assert (architecture.vision[0].count, architecture.vision_hidden) == (16, 768)  # Gemma4VisionConfig's defaults
    assert architecture.parameters > alone.parameters + 200_000_000  # the conformer alone has more


def test_llama_3_2_vision_has_layers_that_attend_to_images_among_the_others() -> None:
    architecture = known("meta-llama/Llama-3.2-11B-Vision-Instruct")
    own, across = architecture.blocks
    assert (own.count, across.count, across.places[:3]) == (32, 8, (3, 8, 13))
    assert across.qk_norm and not own.qk_norm
    assert [b.count for b in architecture.vision] == [32, 8]
    assert architecture.embedding_parameters == (128_256 + 8) * 4096  # image tokens, which the head cannot say
    assert "tiles" in architecture.undescribed
