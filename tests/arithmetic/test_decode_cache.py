"""Keys and values that nobody reads: kept where a loop checkpoints blocks behind the model's back."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.ledger import Ledger
from tests.arithmetic.jobs import TINY, job

TOKENS = 2 * 512
CACHE = TINY["num_hidden_layers"] * TOKENS * 2 * TINY["num_key_value_heads"] * (TINY["hidden_size"] // TINY["num_attention_heads"]) * 2


def cached(ledger: Ledger, moment: str) -> int:
    return sum(h.bytes for h in ledger.alive(moment) if h.part == "decode-cache")


def loop(name: str = "custom", checkpointing: str = "full", **framework: Any) -> Ledger:
    return estimate(job(activations={"checkpointing": checkpointing}, framework={"name": name, **framework}))


def test_a_wrapped_block_leaves_the_cache_on_until_the_outputs_go() -> None:
    """llama-cookbook pull requests 41 and 165: 4 GiB of a Llama-2-7B's 8,192 tokens, through backward while the loop named its outputs."""
    assert cached(loop(use_cache=True), "forward.blocks") == CACHE
    assert cached(loop(use_cache=True), "backward.first-block") == 0
    assert cached(loop(use_cache=True, keeps_outputs=True), "backward.first-block") == CACHE


@pytest.mark.parametrize("framework", [{"use_cache": False}, {}, {"name": "hf-trainer", "use_cache": True}, {"checkpointing": "none", "use_cache": True}])
def test_no_cache_where_it_is_off_guarded_or_kept_by_autograd_anyway(framework: dict[str, Any]) -> None:
    assert cached(loop(**framework), "forward.blocks") == 0
