"""A feed-forward part in tiles: what is kept, what a tile needs, and where one tile is all there is."""

from __future__ import annotations

import pytest

from advisor.architecture import Block
from advisor.arithmetic import context, estimate, settings
from advisor.arithmetic.blocks.block import count, feed_forward
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Counted, Tape
from advisor.run import resolve
from tests.arithmetic.jobs import TINY, job

HIDDEN, WIDTH = TINY["hidden_size"], TINY["intermediate_size"]


def read(*, tiled: bool, seq_len: int = 8192, framework: str = "axolotl") -> tuple[Block, Setting]:
    sections = {"offload": {"tiled_mlp": tiled}, "batch": {"micro_batch": 1, "seq_len": seq_len}, "framework": {"name": framework}}
    ctx = context.read(resolve(job(activations={"checkpointing": "none"}, **sections)))
    block = ctx.blocks[0][0]
    return block, settings.of(ctx, block)


def counted(*, tiled: bool, seq_len: int = 8192) -> Counted:
    block, setting = read(tiled=tiled, seq_len=seq_len)
    return count(block, HIDDEN, setting)


def test_only_the_input_of_the_part_is_kept() -> None:
    whole, tiles = counted(tiled=False), counted(tiled=True)
    assert whole.total[0] - tiles.total[0] == 4 * WIDTH * 2  # gate, activation, up and their product, in 16 bits
    assert tiles.weights == whole.weights  # each weight still gets its gradient


@pytest.mark.parametrize("seq_len", [8192, 65536])
def test_what_a_tile_needs_does_not_grow_with_the_sequence(seq_len: int) -> None:
    tile = max(step.live[2] for step in counted(tiled=True, seq_len=seq_len).backward)
    assert 4 * WIDTH * 2 * HIDDEN < tile < 12 * WIDTH * 2 * HIDDEN  # tiles as long as the model is wide


def test_tiles_that_are_joined_are_there_twice() -> None:
    def joined(framework: str) -> float:
        block, setting = read(tiled=True, seq_len=65536, framework=framework)
        tape = Tape()
        feed_forward(tape, setting, block, tape.enter("normed", HIDDEN, 2), HIDDEN)
        return tape.operations[-1].forward[0]

    assert (joined("axolotl"), joined("unsloth")) == (HIDDEN * 2, 0)


def test_a_sequence_shorter_than_the_model_is_wide_is_one_tile() -> None:
    assert counted(tiled=True, seq_len=HIDDEN) == counted(tiled=False, seq_len=HIDDEN)


def test_a_long_sequence_needs_less_whatever_is_recomputed() -> None:
    for checkpointing in ("none", "full"):

        def peak(tiled: bool, checkpointing: str = checkpointing) -> int:
            made = job(
                offload={"tiled_mlp": tiled}, batch={"micro_batch": 1, "seq_len": 65536}, activations={"checkpointing": checkpointing, "loss": "chunked"},
            )  # fmt: skip
            return estimate(made).peak().bytes

        assert peak(True) < peak(False)


def test_unsloth_quantises_gpt_oss_experts_which_others_leave_in_16_bit() -> None:
    def weights(framework: str) -> int:
        made = job(
            {"model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2}, method={"kind": "lora", "base": "nf4", "targets": "attention"},
            framework={"name": framework, "versions": {"transformers": "4.56.2"}},
        )  # fmt: skip
        return sum(h.bytes for h in estimate(made).holdings if h.part == "weights" and "step.update" in h.moments)

    assert weights("unsloth") < weights("trl") / 2
