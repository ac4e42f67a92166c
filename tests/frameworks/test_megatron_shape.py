"""Megatron's flags give the shape that Megatron builds; counts worked by hand from the flags."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.architecture import read as architecture
from advisor.frameworks.derive.megatron_model import megatron_config
from advisor.frameworks.derive.megatron_stages import megatron_stages

BASE: dict[str, Any] = {"num-layers": 4, "hidden-size": 512, "num-attention-heads": 8, "vocab-size": 50_257, "tensor-model-parallel-size": 2}


def shape(**flags: Any) -> Any:
    found = megatron_config({**BASE, **{k.replace("_", "-"): v for k, v in flags.items()}})
    return architecture(found["model.config"], source=found["model.source"], mlp=found.get("model.mlp"))


def test_the_vocabulary_is_padded_to_what_the_tensor_ranks_divide() -> None:
    assert shape().vocab == 50_432  # 197 x 128 x 2
    assert megatron_config({**BASE, "tokenizer-type": "NullTokenizer", "vocab-size": 131_072})["model.config"]["vocab_size"] == 131_328
    assert megatron_config({**BASE, "vocab-size": None, "tokenizer-type": "Llama2Tokenizer"})["model.config"]["vocab_size"] == 32_000
    assert megatron_config({**BASE, "vocab-size": None}) == {}  # without a vocabulary the shape is not known


def test_a_plain_decoder_has_positions_and_dropout_unless_told() -> None:
    plain = shape(max_position_embeddings=1024)
    assert (plain.hidden_dropout, plain.attention_dropout, plain.rotary, plain.blocks[0].gated) == (0.1, 0.1, False, False)
    assert any(t.shape == (1024, 512) for t in plain.outer)
    told = shape(hidden_dropout=0.0, attention_dropout="0.0", position_embedding_type="rope", group_query_attention=True, num_query_groups=2)
    assert (told.hidden_dropout, told.attention_dropout, told.blocks[0].kv_heads) == (0.0, 0.0, 2)


def test_experts_without_a_gate_have_two_matrices() -> None:
    plain, gated = shape(num_experts=8, ffn_hidden_size=1024), shape(num_experts=8, ffn_hidden_size=1024, swiglu=True)
    assert plain.expert_parameters == 4 * 8 * 2 * 512 * 1024
    assert gated.expert_parameters == 4 * 8 * 3 * 512 * 1024


def test_a_hybrid_pattern_gives_each_layer_its_kind() -> None:
    found = megatron_config({**BASE, "num-layers": None, "hybrid-layer-pattern": "M-M*|M-M*/*-/*-", "swiglu": None})
    config = found["model.config"]
    assert (config["num_hidden_layers"], config["hybrid_override_pattern"], config["num_nextn_predict_layers"]) == (8, "M-M*M-M*", 2)
    built = architecture(config, source="megatron")
    assert [b.count for b in built.blocks] == [4, 2, 2]
    assert len(built.mtp) == 2


@pytest.mark.parametrize(
    "flags", [{"hybrid-layer-pattern": "MG*"}, {"hybrid-layer-pattern": "ME"}, {"spec": "my.spec"}, {"heterogeneous-layers-config-path": "x"}]
)
def test_shapes_that_flags_do_not_give_are_said(flags: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"config\.json|without --num-experts"):
        megatron_config({**BASE, **flags})


def test_more_layers_than_can_be_listed_are_refused() -> None:
    with pytest.raises(ValueError, match="more than any model has"):
        megatron_config({**BASE, "num-layers": 10**12, "num-experts": 8, "moe-layer-freq": "2"})


@pytest.mark.parametrize(
    ("flags", "virtual", "layout"),
    [
        ({"num-layers": 32, "num-layers-per-virtual-pipeline-stage": 1}, 8, None),
        ({"num-layers": 14, "pipeline-model-parallel-layout": "Et*2|(tt|)*5t|tmL"}, 2, (2, 2, 2, 2, 2, 2, 1, 1)),
        ({"num-layers": 15, "pipeline-model-parallel-layout": "Et*3|(tt|)*6mL"}, 2, (3, 2, 2, 2, 2, 2, 2, 0)),
        ({"num-layers": None, "hybrid-layer-pattern": "M-|M*|M-|M*/*-"}, None, (2, 2, 2, 2)),
        ({"num-layers": 61, "decoder-first-pipeline-num-layers": 16, "decoder-last-pipeline-num-layers": 13}, None, (16, 16, 16, 13)),
        ({"num-layers": 61, "decoder-last-pipeline-num-layers": 13}, None, (16, 16, 16, 13)),
        ({"num-layers": 61, "decoder-last-pipeline-num-layers": 14}, None, None),  # 47 over three stages does not come out: Megatron refuses it
        ({"num-layers": 32}, None, None),
        ({"num-layers": 32, "pipeline-model-parallel-layout": "tt|" * 7}, 2, (2, 2, 2, 2, 2, 2, 2, 0)),
        ({"num-layers": 10**12, "pipeline-model-parallel-size": 10**12, "decoder-first-pipeline-num-layers": 1}, None, None),  # a tuple of 8 TB otherwise
        ({"num-layers": 32, "pipeline-model-parallel-layout": "((((t)*99999)*99999)*99999)*99999"}, None, None),
    ],
)
def test_stages(flags: dict[str, Any], virtual: int | None, layout: tuple[int, ...] | None) -> None:
    found = megatron_stages({"pipeline-model-parallel-size": 4, **flags})
    assert (found.get("parallel.virtual_stages"), found.get("parallel.pipeline_layout")) == (virtual, layout)


def test_one_stage_has_no_layout() -> None:
    assert megatron_stages({"num-layers": 32, "num-layers-per-virtual-pipeline-stage": 1}) == {}
