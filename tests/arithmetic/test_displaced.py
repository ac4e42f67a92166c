"""States born in activations' blocks push activations into the loss's: what is reserved is what a replay of the tape through the allocator reserves."""

from __future__ import annotations

from typing import Any

import pytest

from advisor import estimate, resolve
from tests.arithmetic.replay import Replay

GIB = 1 << 30


def job(hidden: int, layers: int, vocab: int, micro: int, *, precision: str, loss: str, checkpointing: str = "none") -> dict[str, Any]:
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64, "vocab_size": vocab, "tie_word_embeddings": False,
    }  # fmt: skip
    return {
        "version": 1,
        "model": {"name": "small", "config": config, "source": "huggingface"},
        "method": {"kind": "full"},
        "objective": "pretrain",
        "precision": {"weights": precision, "compute": precision, "mixed": "none", "gradients": precision, "master": "none"},
        "optimizer": {"name": "adamw", "states": precision, "implementation": "fused"},
        "batch": {"micro_batch": micro, "seq_len": 1024, "gradient_accumulation": 1, "packed": True},
        "activations": {"checkpointing": checkpointing, "attention": "sdpa", "loss": loss},
        "parallel": {"strategy": "none", "shard": 1},
        "framework": {"name": "custom", "versions": {"torch": "2.6.0", "transformers": "4.51.0"}},
    }


@pytest.mark.parametrize(
    ("hidden", "layers", "vocab", "micro", "precision", "loss"),
    [(768, 6, 50304, 16, "bf16", "full"), (1024, 6, 32000, 8, "fp32", "full-fp32"), (1024, 6, 32000, 24, "fp32", "full-fp32")],
)
def test_what_stays_reserved_is_what_a_replay_reserves(hidden: int, layers: int, vocab: int, micro: int, precision: str, loss: str) -> None:
    written = job(hidden, layers, vocab, micro, precision=precision, loss=loss)
    replay = Replay(resolve(written))
    for _ in range(3):
        replay.step(micro * 1024, 1024)
    ledger = estimate(written)
    cached = next(h.bytes for h in ledger.holdings if h.part == "allocator")
    assert cached / GIB == pytest.approx((replay.cache.max_reserved - replay.cache.max_allocated) / GIB, abs=0.15)
    assert cached > 0.2 * GIB


def test_checkpoints_leave_no_room_for_states_in_activations_blocks() -> None:
    from advisor.arithmetic.context import read
    from advisor.arithmetic.displaced import displaced

    written = job(1024, 6, 32000, 8, precision="fp32", loss="full-fp32", checkpointing="full")
    run = resolve(written)
    assert displaced(read(run), estimate(written).holdings) == 0
