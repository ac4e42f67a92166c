"""The arithmetic against figures of ``advisor probe``: real modelling code, autograd and optimizer, every storage counted.

Made with torch 2.13 and transformers 5.24 on the meta device; GiB of the largest moment. Sizes are real ones because the allocator hands out
blocks rounded up, which weighs some percent in toy models.
"""

from __future__ import annotations

from typing import Any

import pytest

from advisor.architecture import presets
from advisor.arithmetic import estimate
from advisor.units import GIB
from tests.arithmetic.jobs import job

FULL: dict[str, Any] = {"framework": {"versions": {"torch": "2.13.0", "transformers": "5.24.0"}}, "hardware": {"gpu": "h200"}}
AUTOCAST = {"precision": {"weights": "fp32", "compute": "bf16", "mixed": "autocast", "gradients": "fp32"}, "optimizer": {"states": "fp32"}}
ADAPTERS = {
    "precision": {"mixed": "autocast"}, "optimizer": {"states": "fp32"},
    "method": {"kind": "lora", "rank": 16, "targets": "all-linear", "adapter_dtype": "fp32"},
}  # fmt: skip
KEPT, CHECKPOINTED = {"checkpointing": "none"}, {"checkpointing": "full", "reentrant": False}
PROBED: list[tuple[str, dict[str, Any], dict[str, Any], int, int, float]] = [
    ("meta-llama/Llama-3.2-1B", {}, CHECKPOINTED, 2, 2048, 13.108),
    ("meta-llama/Llama-3.2-1B", {}, KEPT, 2, 2048, 19.490),
    ("meta-llama/Llama-3.2-1B", AUTOCAST, CHECKPOINTED, 4, 2048, 27.216),
    ("meta-llama/Llama-2-7b-hf", ADAPTERS, CHECKPOINTED, 1, 2048, 14.279),
    ("Qwen/Qwen2.5-7B", ADAPTERS, KEPT, 4, 2048, 79.976),
]


@pytest.mark.parametrize(("model", "sections", "activations", "micro_batch", "seq_len", "gib"), PROBED)
def test_the_peak_is_the_probe_s(model: str, sections: dict[str, Any], activations: dict[str, Any], micro_batch: int, seq_len: int, gib: float) -> None:
    run = job(**FULL, **sections, activations=activations, batch={"micro_batch": micro_batch, "seq_len": seq_len})
    run = run.but(model={"name": model, "config": None}, activations={"attention": "sdpa"})
    assert estimate(run).peak().bytes / GIB == pytest.approx(gib, rel=0.005)


# Toy models, MiB: what matters is the kernel or the dtype, each worth far more than the blocks' rounding (2 to 4 %).
LLAMA = {"hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8000}
TOYS: list[tuple[str, dict[str, Any], dict[str, Any], float]] = [
    ("grouped heads in fp32 run in the math kernel", {}, {"weights": "fp32", "compute": "fp32", "gradients": "fp32"}, 779.1),
    ("gpt2 under autocast: gelu written out runs in fp32", {"model_type": "gpt2"}, AUTOCAST["precision"], 712.2),
    ("gemma 2 keeps the tanh of scores and of logits", {"model_type": "gemma2"}, {}, 844.1),
]
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 512, "n_layer": 6, "n_head": 8, "vocab_size": 8000, "n_positions": 1024, "n_inner": 2048},
    "gemma2": {
        "model_type": "gemma2", "hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 64, "vocab_size": 16000, "tie_word_embeddings": True, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh",
    },
    "llama": {"model_type": "llama", **LLAMA, "tie_word_embeddings": False},
}  # fmt: skip


@pytest.mark.parametrize(("why", "config", "precision", "mib"), TOYS, ids=[t[0] for t in TOYS])
def test_what_a_kernel_or_a_dtype_decides(why: str, config: dict[str, Any], precision: dict[str, Any], mib: float) -> None:
    model = {"config": CONFIGS[config.get("model_type", "llama")], "source": "huggingface"}
    wide = {"states": "fp32"} if precision else {}
    plain = job(framework=FULL["framework"], precision=precision, optimizer=wide, activations={"checkpointing": "none", "attention": "sdpa"})
    assert estimate(plain.but(model=model)).peak().bytes / 2**20 == pytest.approx(mib, rel=0.045), why


BF16 = {"method": {"kind": "lora", "rank": 16, "targets": "all-linear", "adapter_dtype": "bf16"}}
FAMILIES: list[tuple[str, int, dict[str, Any], float]] = [  # models cut to so many layers, two sequences of 1,024 tokens, fused AdamW, bf16
    ("tiiuae/falcon-7b", 4, {}, 11.554),  # one key head is left to broadcast, which only the math kernel takes
    ("openai/gpt-oss-20b", 4, {}, 33.194),  # no scaled_dot_product_attention; the softmax, sinks and all, in bf16
    ("bigscience/bloom-1b1", 4, {}, 9.694),
    ("mosaicml/mpt-7b", 4, {}, 9.358),
    ("google/flan-t5-large", 4, {"activations": {"checkpointing": "none", "attention": "eager"}}, 4.509),  # dropout within the MLP, a loss that widens nothing
    ("EleutherAI/gpt-j-6b", 4, {}, 9.639),
    ("deepseek-ai/DeepSeek-V2-Lite", 4, {}, 16.855),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 4, {}, 54.087),
    ("zai-org/GLM-4.5-Air", 4, {}, 63.463),
    ("LiquidAI/LFM2-1.2B", 4, {}, 4.703),
    ("CohereLabs/c4ai-command-r-v01", 4, BF16, 18.467),
    ("microsoft/Phi-4-mini-instruct", 4, BF16, 7.527),
    ("bigcode/starcoder2-3b", 4, BF16, 2.822),
    ("allenai/OLMoE-1B-7B-0924", 4, BF16, 9.389),  # peft folds adapters into the fused experts, all of them, in every layer
    ("deepseek-ai/DeepSeek-V2-Lite", 4, BF16, 11.215),
    ("Qwen/Qwen3-30B-A3B", 4, BF16, 15.622),
]
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


@pytest.mark.parametrize(("model", "layers", "sections", "gib"), FAMILIES, ids=[f"{f[0]} {'adapters' if 'method' in f[2] else ''}" for f in FAMILIES])
def test_families_without_a_public_measurement(model: str, layers: int, sections: dict[str, Any], gib: float) -> None:
    preset = presets.find(model)
    assert preset is not None
    config = {k: min(v, layers) if k in LAYERS or k == "num_decoder_layers" else v for k, v in preset.config.items()}
    config |= {k: config[k][:layers] for k in ("layer_types", "mlp_layer_types") if isinstance(config.get(k), (list, tuple))}
    if model == "google/flan-t5-large":
        config["tie_word_embeddings"] = True  # T5Config makes it so, and what is loaded without a checkpoint stays tied: so it was probed
    merged = {"activations": {"checkpointing": "none", "attention": "sdpa"}, "optimizer": {"implementation": "fused"}, **sections}
    today = {"versions": {**FULL["framework"]["versions"], "peft": "0.21.2"}}
    run = job(**merged, framework=today, batch={"micro_batch": 2, "seq_len": 1024}).but(model={"config": config})
    assert estimate(run).peak().bytes / GIB == pytest.approx(gib, rel=0.02)


BF16_PLAIN = {"precision": {"weights": "bf16", "compute": "bf16", "mixed": "none", "gradients": "bf16"}, "optimizer": {"states": "bf16"}}
TRL: list[tuple[str, str, dict[str, Any], int, float]] = [  # Qwen3-0.6B, 512 tokens, a copy as DPO's reference; each TRL's own log-probabilities
    ("dpo", "0.13.0", BF16_PLAIN, 1, 7.298),  # one log-softmax of all logits
    ("dpo", "0.13.0", AUTOCAST, 1, 13.993),
    ("dpo", "0.24.0", BF16_PLAIN, 1, 7.298),  # a row at a time
    ("dpo", "0.24.0", BF16_PLAIN, 2, 9.804),
    ("dpo", "0.24.0", AUTOCAST, 1, 14.572),
    ("dpo", "0.24.0", AUTOCAST, 2, 19.088),
    ("dpo", "1.0.0", BF16_PLAIN, 1, 8.167),  # the policy's logits and their shifted copy are named while the reference runs
    ("dpo", "1.0.0", BF16_PLAIN, 2, 11.540),
    ("dpo", "1.0.0", AUTOCAST, 1, 14.862),
    ("dpo", "1.7.0", BF16_PLAIN, 1, 7.588),  # no copy
    ("dpo", "1.7.0", BF16_PLAIN, 2, 10.383),
    ("grpo", "0.14.0", AUTOCAST, 2, 11.194),
    ("grpo", "0.24.0", BF16_PLAIN, 2, 5.901),
    ("grpo", "0.24.0", AUTOCAST, 2, 12.350),
    ("grpo", "1.7.0", BF16_PLAIN, 2, 6.478),  # divided by the temperature in place
    ("grpo", "1.7.0", AUTOCAST, 2, 12.352),
]


@pytest.mark.parametrize(("objective", "version", "sections", "micro_batch", "gib"), TRL)
def test_trl_s_log_probabilities(objective: str, version: str, sections: dict[str, Any], micro_batch: int, gib: float) -> None:
    framework = {"name": "trl", "versions": {**FULL["framework"]["versions"], "trl": version}}
    batch = {"micro_batch": micro_batch, "seq_len": 512, "packed": False}
    reference = "copy" if objective == "dpo" else "none"
    run = job(**{**FULL, "framework": framework}, **sections, objective=objective, reference=reference, batch=batch, activations=KEPT)
    run = run.but(model={"name": "Qwen/Qwen3-0.6B", "config": None})
    assert estimate(run).peak().bytes / GIB == pytest.approx(gib, rel=0.002)


ROWS = {"activations": {"checkpointing": "none", "attention": "flash-2", "sequence_packing": "padding-free"}, **BF16_PLAIN}
CAPPED = {
    "objective": "dpo", "reference": "adapter-off", "precision": {"mixed": "autocast"}, "activations": {**CHECKPOINTED, "attention": "flash-2"},
    "method": {"kind": "lora", "rank": 16, "targets": "all-linear", "adapter_dtype": "fp32"}, "optimizer": {"implementation": "foreach", "states": "fp32"},
}  # fmt: skip
FOUND: list[tuple[str, str, dict[str, Any], int, int, float]] = [  # what the zoo of jobs found, and the code then said
    ("microsoft/Phi-3-mini-4k-instruct", "hf-trainer", ROWS, 4, 2048, 58.574),  # parts of a fused projection are copied into order, the whole is not kept
    ("EleutherAI/pythia-1b", "hf-trainer", ROWS, 4, 2048, 17.892),
    ("google/gemma-2-2b", "trl", CAPPED, 2, 1024, 23.225),  # autocast leaves the tanh that caps logits in 16 bit
]


@pytest.mark.parametrize(("model", "framework", "sections", "micro_batch", "seq_len", "gib"), FOUND)
def test_what_the_zoo_found(model: str, framework: str, sections: dict[str, Any], micro_batch: int, seq_len: int, gib: float) -> None:
    versions = {**FULL["framework"]["versions"], "peft": "0.21.2", "accelerate": "1.15.0"}
    settings = {**FULL, "framework": {"name": framework, "versions": versions}, **sections}
    run = job(**settings, batch={"micro_batch": micro_batch, "seq_len": seq_len, "packed": framework != "trl"}).but(model={"name": model, "config": None})
    assert estimate(run).peak().bytes / GIB == pytest.approx(gib, rel=0.005)
