"""Unsloth's loss by version, batch and card, as its own code makes it."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.job import Job
from advisor.ledger import Ledger
from advisor.run import resolve

VOCAB, HIDDEN = 128_256, 4096  # Llama-3.1-8B, config.json of the hub model


def run(version: str | None, *, seq_len: int = 2048, gpu: str | None = "a100-80gb", micro: int = 2, **more: Any) -> Ledger:
    method = more.pop("method", {"kind": "lora", "base": "nf4", "rank": 16})
    job = Job().but(
        model={"name": "meta-llama/Llama-3.1-8B"}, method=method, objective="sft", optimizer={"name": "adamw-8bit"},
        batch={"micro_batch": micro, "seq_len": seq_len, "packed": True}, framework={"name": "unsloth", "versions": {"unsloth": version} if version else {}},
        hardware={"gpu": gpu} if gpu else {}, **more,
    )  # fmt: skip
    return estimate(resolve(job))


def logits(ledger: Ledger, moment: str) -> dict[str, int]:
    return {h.name: h.bytes for h in ledger.alive(moment) if h.part == "logits"}


@pytest.mark.parametrize("version", ["2024.8", "2024.9.post1", "2024.10.0"])
def test_whole_logits_and_the_copy_that_accelerate_makes_of_the_outputs(version: str) -> None:
    """What 2 x 2,048 tokens cost in 2024: 6 bytes an entry in forward, then the gradient over the 16-bit logits."""
    found = run(version)
    assert logits(found, "loss.forward") == {"logits and loss, forward": 4096 * VOCAB * 6}
    assert logits(found, "loss.backward") == {"gradients of the loss": 4096 * VOCAB * 2}


def test_cut_cross_entropy_makes_no_logits() -> None:
    assert logits(run("2025.1.5"), "loss.forward") == {"gradient of the hidden states": 4096 * HIDDEN * 2}


def test_a_short_batch_takes_the_way_of_whole_logits() -> None:
    assert logits(run("2025.1.5", seq_len=512), "loss.forward") == {"logits and loss, forward": 1024 * VOCAB * 6}
    assert "logits and loss, forward" not in logits(run("2024.12.4", seq_len=512), "loss.forward")


@pytest.mark.parametrize("version", ["2025.9.1", None])
def test_chunks_are_as_large_as_the_card_has_room_for(version: str | None) -> None:
    """On 80 GB 4,096 tokens are one chunk; 32,768 tokens on a 12 GB card are four (a chunk count is a multiple of four)."""
    assert logits(run(version), "loss.forward")["logits of a chunk and their gradient"] == 4096 * VOCAB * 4
    small = logits(run(version, seq_len=16384, gpu="rtx3060-12gb"), "loss.forward")["logits of a chunk and their gradient"]
    assert small == 32768 // 4 * VOCAB * 4


def test_kernels_of_unsloth_are_counted_without_being_named() -> None:
    """Its norms save their 16-bit input, its MLP gate and up only: no fp32 copies of the norms' inputs, no product kept."""
    names = {h.name for h in run("2024.8", activations={"checkpointing": "none"}).alive("loss.forward")}
    assert "gate_proj output" in names and not {n for n in names if "as fp32" in n or "gated product" in n}
    dropping = {"kind": "lora", "base": "nf4", "rank": 16, "dropout": 0.05}
    slow = {h.name for h in run("2024.8", activations={"checkpointing": "none"}, method=dropping).alive("loss.forward")}
    assert any("adapter after dropout" in n for n in slow) and not {n for n in slow if "norm input as fp32" in n}
