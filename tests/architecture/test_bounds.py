"""Hostile and broken configs end in a sentence that names the key, never in a crash or a wait."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.architecture import ConfigError, of_model, read
from advisor.architecture.families import READERS
from advisor.job import Model

GOOD: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
}

KEYS = [
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "d_model", "n_layer", "n_head", "n_embd", "num_experts",
    "n_routed_experts", "kv_lora_rank", "layer_types", "text_config", "vision_config", "attn_config", "ffn_config", "hybrid_override_pattern", "moe_layer_freq",
    "architectures", "head_dim", "d_ff", "num_layers", "id2label", "num_labels", "mlp_only_layers", "moe_layers", "attn_layer_indices", "tie_word_embeddings",
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("hidden_size", -64, "-64"),
        ("num_hidden_layers", 10**12, "1,000,000,000,000"),
        ("hidden_size", "4096", "'4096'"),
        ("hidden_size", 64.5, "64.5"),
        ("hidden_size", True, "True"),
        ("hidden_size", 10**4000, "more than 60 digits"),
        ("num_attention_heads", 0, "0"),
        ("num_key_value_heads", 3, "divisor"),
        ("intermediate_size", [1, 2], "a list"),
        ("vocab_size", {"a": 1}, "a mapping"),
        ("attention_bias", "yes", "true or false"),
        ("hidden_size", float("nan"), "nan"),
        ("hidden_size", float("inf"), "inf"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**GOOD, key: value})
    assert key in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers"])
def test_what_decides_the_size_is_never_assumed(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        read({k: v for k, v in GOOD.items() if k != key})


def test_a_nest_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"text_config": deep}
    with pytest.raises(ConfigError, match="nested"):
        read({**GOOD, "x": deep})
    with pytest.raises(ConfigError, match="values"):
        read({**GOOD, "x": [0] * 200_000})


def test_no_mapping_and_no_word() -> None:
    with pytest.raises(ConfigError, match="mapping"):
        read([])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model_type"):
        read({**GOOD, "model_type": 7})


@pytest.mark.parametrize("kind", [*sorted(READERS), "unheard-of", ""])
@pytest.mark.parametrize("mess", [None, -1, 0, 2.5, "text", [], {}, [{}], 10**13, True])
def test_every_reader_survives_any_value(kind: str, mess: Any) -> None:
    for key in KEYS:
        try:
            read({**GOOD, "model_type": kind, key: mess})
        except ConfigError as error:
            assert len(str(error)) > 20


KINDS = ["llama", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "starcoder2", "cohere", "olmo2", "internlm2", "glm", "qwen", "chatglm"]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), st.integers(1, 200), st.integers(1, 16), st.integers(1, 4000), st.integers(1, 5000), st.sampled_from(KINDS))
def test_more_of_anything_is_never_fewer_parameters(hidden: int, layers: int, heads: int, width: int, vocab: int, kind: str) -> None:
    config = {
        "model_type": kind, "hidden_size": hidden * heads, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "intermediate_size": 2 * width, "vocab_size": vocab,
    }  # fmt: skip
    base = read(config).parameters
    for key, more in (
        ("num_hidden_layers", layers + 1),
        ("hidden_size", (hidden + 1) * heads),
        ("intermediate_size", 2 * width + 2),
        ("vocab_size", vocab + 1),
    ):
        assert read({**config, key: more}).parameters > base


def test_reading_is_quick_and_of_model_is_cached() -> None:
    read(GOOD)
    start = time.process_time()
    for _ in range(200):
        read(GOOD)
    assert (time.process_time() - start) / 200 < 0.01  # 0.1 ms on a quiet core; the bound is wide for a shared one
    model = Model(config=GOOD)
    assert of_model(model) is of_model(Model(config=dict(GOOD)))
    assert of_model(Model(config={**GOOD, "vocab_size": 129})) is not of_model(model)
