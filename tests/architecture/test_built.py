"""Names, shapes and counts of tensors against models that transformers builds on the meta device, for small configs of some families."""

from collections import Counter
from typing import Any

import pytest

from advisor.architecture import Architecture, read
from advisor.architecture.tensor_shapes import tensor_shapes

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "head_dim": 16,
}  # fmt: skip
MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "first_k_dense_replace": 1,
}


def built(kind: str, config: dict[str, Any]) -> Counter[tuple[str, tuple[int, ...]]]:
    made = transformers.AutoConfig.for_model(kind, **config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    seen: set[int] = set()
    found: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for path, module in model.named_modules():
        leaf = path.rpartition(".")[2]
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[{"weight": leaf, "bias": f"{leaf}.bias"}.get(name, name), tuple(parameter.shape)] += 1
    return found


def ours(architecture: Architecture) -> Counter[tuple[str, tuple[int, ...]]]:
    return Counter({(name, shape): count for name, shape, count in tensor_shapes(architecture)})


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {}),
        ("gemma3_text", {}),
        ("phi3", {"pad_token_id": 0}),
        ("qwen3_moe", {**MOE, "mlp_only_layers": [1]}),
        ("deepseek_v3", {**LATENT, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
        ("nemotron_h", {**MAMBA, "hybrid_override_pattern": "M*-M"}),
        ("qwen3_next", {**MOE, "shared_expert_intermediate_size": 48}),
    ],
)
def test_the_same_tensors_as_transformers(kind: str, more: dict[str, Any]) -> None:
    config = {**SMALL, **more}
    assert ours(read({**config, "model_type": kind})) == built(kind, config)


@pytest.mark.parametrize("gated", [False, True])
def test_dinov2_has_the_same_tensors(gated: bool) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "use_swiglu_ffn": gated, "image_size": 56, "patch_size": 14, "num_labels": 5}
    with torch.device("meta"):
        model = transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**config))
    shapes = Counter(tuple(p.shape) for p in model.parameters())
    found: Counter[tuple[int, ...]] = Counter()
    for (_, shape), count in ours(read({**config, "model_type": "dinov2"})).items():
        found[shape] += count
    assert found == shapes


@pytest.mark.parametrize("kind", ["bart", "plbart", "mvp", "mbart", "marian", "blenderbot", "blenderbot-small", "pegasus", "m2m_100", "t5", "longt5"])
def test_encoder_decoders_have_the_parameters_of_what_is_built(kind: str) -> None:
    halves = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))}
    small = {"d_model": 64, "vocab_size": 128, "pad_token_id": 0, "max_position_embeddings": 40, **halves}
    if kind.endswith("t5"):
        small = {"d_model": 64, "vocab_size": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 96}
    made = transformers.AutoConfig.for_model(kind, **small)
    with torch.device("meta"):
        model = transformers.AutoModelForSeq2SeqLM.from_config(made)
    assert read({**made.to_dict(), "model_type": kind}).parameters == sum(p.numel() for p in model.parameters())
