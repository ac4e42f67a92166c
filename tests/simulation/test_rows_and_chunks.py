"""Rows without padding, TRL's losses by chunks, and blocks that are recomputed: what lives, by hand and beside the estimate."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.conftest import CONFIGS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BF16 = {"precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"}}
VOCAB, WIDTH, CHUNK = 8192, 64, 256
SCALAR = 512  # a number counts as a block
WIDE = {"model": {"config": {**CONFIGS["llama"], "vocab_size": VOCAB}}, "batch": {"micro_batch": 4, "seq_len": 512}}
FLASH = {"attention": "flash-2"}
FULL = {**FLASH, "checkpointing": "full", "reentrant": True}


def _ledgers(run: Any) -> tuple[Any, Any]:
    from advisor.arithmetic import estimate
    from advisor.simulation import timeline
    from advisor.simulation.step import STEPS, record

    seen = record(run)
    vocab = run.architecture.vocab
    return timeline.ledger(seen.events, seen.storages, seen.moments, vocab=vocab, last_step=STEPS - 1, software={}), estimate(run)


def _at(ledger: Any, moment: str) -> int:
    return sum(size for part, size in ledger.by_part(moment).items() if part not in ("allocator", "context"))


@pytest.mark.parametrize("version", ["1.7.0", "1.16.0"])
@pytest.mark.parametrize("method", [{"kind": "full"}, {"kind": "lora", "rank": 4}], ids=["full", "lora"])
def test_trls_chunked_loss_is_the_estimates(version: str, method: dict[str, Any], tiny: Callable[..., Any]) -> None:
    framework = {"name": "trl", "versions": {"trl": version, "transformers": "5.24.0"}}
    probed, estimated = _ledgers(tiny("llama", **BF16, **WIDE, method=method, framework=framework, activations={**FLASH, "loss": "chunked"}))
    for moment in ("loss.forward", "loss.backward"):
        assert _at(estimated, moment) == pytest.approx(_at(probed, moment), rel=0.02)


def test_before_1_15_a_chunk_is_made_anew_on_a_copy_of_the_head(tiny: Callable[..., Any]) -> None:
    """Logits, log-softmax and exponentials of 256 tokens in fp32, beside the head in fp32 and the chunk's own hidden states."""
    framework = {"name": "trl", "versions": {"trl": "1.7.0"}}
    probed, _ = _ledgers(tiny("llama", **BF16, **WIDE, framework=framework, activations={**FLASH, "loss": "chunked"}))
    held = sorted(h.bytes for h in probed.holdings if "loss.backward" in h.moments and h.dtype == "float32" and h.bytes >= VOCAB * WIDTH * 4)
    assert held == [(VOCAB + CHUNK) * WIDTH * 4 + SCALAR, *[CHUNK * VOCAB * 4] * 3]


def test_dpo_and_grpo_of_new_versions_hold_no_logits(tiny: Callable[..., Any]) -> None:
    framework = {"name": "trl", "versions": {"trl": "1.16.0"}}
    for objective, reference in (("dpo", "copy"), ("grpo", "none")):
        job = {"objective": objective, "reference": reference, "framework": framework, "activations": {**FLASH, "loss": "chunked"}}
        probed, _ = _ledgers(tiny("llama", **BF16, **WIDE, **job))
        assert probed.by_part("loss.forward").get("logits", 0) == 0


def test_a_row_without_padding_is_told_where_its_sequences_begin(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    job = {**BF16, "batch": {"micro_batch": 4, "seq_len": 64}}
    seen = record(tiny("llama", **job, activations={**FLASH, "sequence_packing": "padding-free"}))
    shapes = {(s.operator, s.shape) for s in seen.storages.values()}
    assert any(shape == (4 * 64, 4, 16) for _, shape in shapes)  # tokens, heads, head size: sequences on end
    assert any(operator == "aten::cat" and shape == (5,) for operator, shape in shapes)  # where four sequences begin, and the end
    assert {s.shape for s in seen.storages.values() if s.operator == "aten::embedding"} == {(1, 256, 64)}


def test_the_kernels_buffers_for_sequences_on_end() -> None:
    import torch

    from advisor.simulation.kernels import flash_varlen_backward

    query, key = (torch.empty(200, heads, 16, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    begins = torch.empty(3, dtype=torch.int32, device="meta")
    rows = 200 + 2 * 128
    assert flash_varlen_backward(query, query, key, key, query, query, begins) == [
        4 * rows * 4, rows * 4 * 32 * 4, 200 * 4 * 16 * 2, 200 * 4 * 16 * 2,
    ]  # fmt: skip


def test_soft_caps_run_in_the_flash_kernel(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    seen = record(tiny("gemma2", **BF16, activations=FLASH))
    assert any("flash" in s.operator for s in seen.storages.values())


@pytest.mark.parametrize(("kind", "within"), [("lora", 0.01), ("dora", 0.03)])
def test_an_adapted_block_is_largest_while_it_is_recomputed(kind: str, within: float, tiny: Callable[..., Any]) -> None:
    method = {"kind": kind, "rank": 4, "targets": "all-linear", "dropout": 0.05 if kind == "lora" else 0.0}
    job = {**BF16, "batch": {"micro_batch": 4, "seq_len": 1024}, "framework": {"name": "hf-trainer"}, "method": method, "activations": FULL}
    probed, estimated = _ledgers(tiny("llama", **job))
    assert any("recomputed tensors" in h.name for h in estimated.holdings)
    assert _at(estimated, "backward.last-block") == pytest.approx(_at(probed, "backward.last-block"), rel=within)
