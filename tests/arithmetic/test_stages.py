"""Which layers sit on a pipeline stage where kinds of layers alternate."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.architecture import Architecture, presets
from advisor.arithmetic.stages import on_card, on_stage
from advisor.run import resolve
from tests.arithmetic.jobs import TINY, job

PATTERN = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-"  # Megatron-LM's hybrid functional tests
HYBRID: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 44, "num_attention_heads": 8, "vocab_size": 8000,
    "num_key_value_heads": 4, "head_dim": 64, "hybrid_override_pattern": PATTERN, "mamba_num_heads": 16, "mamba_head_dim": 64, "ssm_state_size": 64,
    "n_groups": 2,
}  # fmt: skip


def _architecture(config: dict[str, Any]) -> Architecture:
    made = resolve(job().but(model={"config": config})).architecture
    assert made is not None
    return made


def _letters(arch: Architecture, blocks: Any) -> dict[str, int]:
    out = dict.fromkeys("M-*", 0)
    for block, number in blocks:
        out["M" if block.mixer is not None else "*" if block.heads else "-"] += number
    assert sum(out.values()) == sum(n for _, n in blocks) and len(arch.blocks) == 3
    return out


@pytest.mark.parametrize("rank", range(4))
def test_a_stage_has_the_layers_that_stand_on_it(rank: int) -> None:
    arch = _architecture(HYBRID)
    found = _letters(arch, on_stage(arch, job(parallel={"strategy": "megatron", "pipeline": 4, "pipeline_rank": rank}), "middle"))
    assert found == {letter: PATTERN[11 * rank : 11 * rank + 11].count(letter) for letter in "M-*"}


def test_interleaved_stages_have_the_layers_of_their_chunks() -> None:
    arch = _architecture(HYBRID)
    chunks = [PATTERN[11 * i : 11 * i + 11] for i in range(4)]
    for rank in (0, 1):
        made = job(parallel={"strategy": "megatron", "pipeline": 2, "virtual_stages": 2, "pipeline_rank": rank})
        assert _letters(arch, on_stage(arch, made, "middle")) == {c: (chunks[rank] + chunks[rank + 2]).count(c) for c in "M-*"}


def test_the_stages_together_have_every_layer_of_every_kind() -> None:
    windows = {**TINY, "model_type": "gemma2", "head_dim": 64, "num_hidden_layers": 10, "sliding_window": 128}
    for config in (HYBRID, windows):
        arch = _architecture(config)
        for layout in (None, (1, arch.layers - 3, 2)):
            found = [on_stage(arch, job(parallel={"pipeline": 3, "pipeline_rank": r, "pipeline_layout": layout}), "middle") for r in range(3)]
            for block in arch.blocks:
                assert sum(n for stage in found for b, n in stage if b is block) == block.count
    halves = on_card(_architecture(windows), (1.0, 1.0))[1]
    assert [n for _, n in halves] == [3, 2] or [n for _, n in halves] == [2, 3]


def test_kinds_that_follow_one_another_say_no_places() -> None:
    preset = presets.find("meta-llama/Llama-3.1-8B")
    assert preset is not None
    assert all(not b.places for b in _architecture(preset.config).blocks)
