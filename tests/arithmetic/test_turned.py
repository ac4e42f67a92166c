"""What recomputed blocks leave in the allocator's cache, against replays of the tape and against what nvidia-smi showed."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.arithmetic.outside import AT_LEAST, AT_MOST
from advisor.run import Run, resolve
from advisor.units import GIB
from tests.arithmetic.jobs import job
from tests.arithmetic.replay import Replay

LLAMA_8B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
MISTRAL = {**LLAMA_8B, "model_type": "mistral", "vocab_size": 32000}
QWEN_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
    "vocab_size": 152064,
}  # fmt: skip


def run(config: dict[str, Any], sequences: int, kernels: list[str], dropout: float = 0.1) -> Run:
    return resolve(
        job(
            config,
            method={"kind": "lora", "rank": 16, "targets": "attention", "dropout": dropout},
            activations={"loss": "fused-linear", "kernels": kernels},
            precision={"mixed": "autocast"},
            batch={"micro_batch": sequences, "seq_len": 4096},
        )
    )


def replayed(of: Run) -> int:
    replay = Replay(of)
    for _ in range(2):
        replay.step(replay.ctx.tokens, replay.ctx.seq_len)
    return replay.cache.reserved


@pytest.mark.parametrize(("config", "sequences", "shown"), [(LLAMA_8B, 4, 24.45), (LLAMA_8B, 8, 33.45), (MISTRAL, 8, 31.73)])
def test_a_replay_reserves_what_a_card_showed(config: dict[str, Any], sequences: int, shown: float) -> None:
    """fms-acceleration on one A100, fused linear loss: nvidia-smi less the CUDA context, GiB."""
    assert replayed(run(config, sequences, ["rmsnorm", "rope"])) / GIB == pytest.approx(shown, rel=0.025)


@pytest.mark.parametrize("config", [LLAMA_8B, MISTRAL, QWEN_7B])
@pytest.mark.parametrize("kernels", [[], ["rmsnorm", "rope"]])
def test_the_range_of_the_cache_holds_a_replay(config: dict[str, Any], kernels: list[str]) -> None:
    of = run(config, 4, kernels)
    ledger = estimate(of)
    cached = next(h for h in ledger.holdings if h.part == "allocator")
    peak, found = ledger.peak().bytes, replayed(of)
    assert cached.values[AT_LEAST] > 0
    assert peak + cached.values[AT_LEAST] <= 1.02 * found
    assert found <= 1.02 * (peak + cached.values[AT_MOST])
