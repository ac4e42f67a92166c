"""What the fused kernels of state-space mixers keep, tensor by tensor."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.arithmetic import settings
from advisor.arithmetic.blocks.block import count
from advisor.arithmetic.blocks.tape import Counted
from advisor.arithmetic.context import read
from advisor.run import resolve
from tests.arithmetic.jobs import job

HIDDEN, HEADS, SIZE, STATE, GROUPS = 512, 16, 64, 64, 2
INNER, CHANNELS = HEADS * SIZE, HEADS * SIZE + 2 * GROUPS * STATE
MAMBA2: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": HIDDEN, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 4096,
    "num_key_value_heads": 4, "head_dim": 64, "hybrid_override_pattern": "M-M*", "mamba_num_heads": HEADS, "mamba_head_dim": SIZE,
    "ssm_state_size": STATE, "n_groups": GROUPS,
}  # fmt: skip
FALCON: dict[str, Any] = {
    "model_type": "falcon_mamba", "hidden_size": HIDDEN, "intermediate_size": 1024, "num_hidden_layers": 4, "state_size": 16, "vocab_size": 4096,
    "conv_kernel": 4, "time_step_rank": 32, "tie_word_embeddings": True,
}  # fmt: skip


def _mixer(config: dict[str, Any], **sections: Any) -> Counted:
    source = sections.pop("source", "huggingface")
    ctx = read(resolve(job(**sections).but(model={"config": config, "source": source})))
    block = next(b for b in ctx.arch.blocks if b.mixer is not None)
    return count(block, ctx.arch.hidden, settings.of(ctx, block))


def _saved(counted: Counted) -> dict[str, float]:
    return {s.name: s.size[0] for s in counted.saved}


def test_mamba_2_keeps_the_projection_and_the_scan_before_its_gate() -> None:
    saved = _saved(_mixer(MAMBA2))
    assert saved["in_proj output"] == 2 * (INNER + CHANNELS + HEADS)
    assert saved["scan output before its gate"] == 2 * INNER
    assert not any("convolution" in name or "state" in name.removesuffix("statistic") for name in saved)  # made anew in the backward pass
    assert "out_proj output" not in saved and "gated norm output" not in saved


def test_megatron_s_norm_and_projection_follow_the_scan_and_keep_their_inputs() -> None:
    saved = _saved(_mixer({**MAMBA2, "hidden_dropout": 0.1}, source="megatron", parallel={"strategy": "megatron"}))
    assert saved["scan output"] == saved["gated norm output"] == saved["scan output before its gate"] == 2 * INNER
    assert saved["mixer output dropout mask"] == HIDDEN


def test_mamba_1_keeps_both_halves_the_step_and_a_state_every_2048_tokens() -> None:
    saved, inner = _saved(_mixer(FALCON)), 1024
    assert saved["in_proj output"] == 2 * 2 * inner
    assert saved["step, B and C"] == 2 * (32 + 2 * 16 + 2 * 16)
    assert saved["scan states"] == pytest.approx(4 * 2 * inner * 16 / 2048)


def test_the_backward_pass_of_the_scan_needs_more_than_it_keeps() -> None:
    counted = _mixer(MAMBA2)
    heaviest = max(step.live[0] for step in counted.backward)
    assert heaviest > 2 * (2 * CHANNELS + 2 * INNER)  # convolution and output again, and their gradients
