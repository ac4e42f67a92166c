"""Tensor ranks that divide the sequence between the linears, and pipelines over FSDP2: DTensor's way, as torchtitan runs it."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.ledger import Ledger
from tests.arithmetic.jobs import TINY, job

FP32 = {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "gradients": "fp32", "reduce": "fp32"}
TOKENS, HIDDEN, VOCAB = 2 * 512, TINY["hidden_size"], TINY["vocab_size"]


def titan(tensor: int, *, checkpointing: str = "full", loss: str = "full-fp32", **parallel: Any) -> Ledger:
    activations = {
        "loss": loss,
        "checkpointing": checkpointing,
        "attention": "sdpa",
        **({"selective": {"policy": "op"}} if checkpointing == "selective" else {}),
    }
    return estimate(
        job(
            model={"source": "torchtitan"},
            precision=FP32,
            optimizer={"states": "fp32", "implementation": "fused"},
            activations=activations,
            parallel={"strategy": "fsdp2", "shard": 2, "tensor": tensor, **parallel},
            framework={"name": "torchtitan", "versions": {}},
        )
    )


def held(ledger: Ledger, moment: str) -> dict[str, int]:
    return {h.name: h.bytes for h in ledger.alive(moment)}


@pytest.mark.parametrize(("sequence", "ranks"), [(True, 4), (False, 1)])
def test_checkpoints_are_a_ranks_part_of_the_sequence(sequence: bool, ranks: int) -> None:
    assert held(titan(4, sequence=sequence), "loss.forward")["layer inputs (checkpoints)"] == 6 * TOKENS * HIDDEN * 2 // ranks


def test_linears_save_the_gathered_input_and_norms_a_part_of_it() -> None:
    kept = held(titan(4, sequence=True, checkpointing="none"), "loss.forward")
    assert kept["gathered attention input"] == kept["gathered MLP input"] == 6 * TOKENS * HIDDEN * 2
    assert kept["attention norm input as fp32"] == 6 * TOKENS * HIDDEN * 4 // 4


def test_the_selective_policy_keeps_what_a_reduce_scatter_gives() -> None:
    kept = held(titan(4, sequence=True, checkpointing="selective"), "loss.forward")
    assert kept["attention output, a rank's part"] == 6 * TOKENS * HIDDEN * 2 // 4
    assert "attention output, a rank's part" not in held(titan(1, checkpointing="selective"), "loss.forward")


def test_loss_parallelism_holds_four_tensors_of_fp32_over_a_part_of_the_vocabulary() -> None:
    assert held(titan(4, sequence=True), "loss.backward")["gradients of the loss"] == TOKENS * (VOCAB // 4) * 16
    assert held(titan(1), "loss.backward")["gradients of the loss"] == TOKENS * VOCAB * 12


def test_a_vocabulary_parallel_loss_is_dtensors_in_torchtitan_not_megatrons() -> None:
    """Megatron's writes over its fp32 copy (6 bytes an entry); DTensor's makes a tensor an operation (16), whatever the job calls it."""
    assert held(titan(4, sequence=True, loss="vocab-parallel"), "loss.backward")["gradients of the loss"] == TOKENS * (VOCAB // 4) * 16


def test_a_pipeline_keeps_parameters_and_gradients_whole_until_its_last_micro_batch() -> None:
    """torch pipelining/stage.py backward_maybe_with_nosync; torchtitan reshard_after_forward = not pp_enabled."""
    ledger = titan(1, pipeline=2, microbatches=4)
    kept = held(ledger, "backward.first-block")
    learned = next(h.values["elements"] for h in ledger.alive("backward.first-block") if h.name == "whole gradients kept over micro batches")
    assert kept["whole gradients kept over micro batches"] == 4 * int(learned)
    assert "gathered blocks (not freed after forward)" in kept
    alone = held(titan(1, pipeline=2, microbatches=1), "backward.first-block")
    assert "whole gradients kept over micro batches" not in alone
