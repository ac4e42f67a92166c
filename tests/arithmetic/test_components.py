"""Single components against public measurements of them (linkedin/Liger-Kernel benchmark data; Megatron-LM issue figures), within 3 %.

The figures are peaks of a process that runs only the component, over and over: its input, and the input's gradient of the round before,
are inside; the graph is retained.
"""

from __future__ import annotations

import pytest

from advisor.arithmetic.blocks.mlp import gated
from advisor.arithmetic.blocks.operations import linear
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Tape
from advisor.arithmetic.fused_linear import chunk_of
from advisor.arithmetic.logits import megatron
from advisor.arithmetic.losses import materialised

WITHIN = 0.03
SOURCE = "linkedin/Liger-Kernel benchmark/data/all_benchmark_data.csv, A100 80 GB"


@pytest.mark.parametrize(("vocab", "measured"), [(16384, 5368841216), (32768, 10737550336)])
def test_cross_entropy_of_hugging_face_in_fp32(vocab: int, measured: int) -> None:
    loss = materialised("full", 4, None, False, False)
    leaf, its_gradient = 4, 4
    assert 8 * 2048 * vocab * (leaf + its_gradient + loss.backward) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(("vocab", "measured"), [(4096, 268609024), (16384, 1073915392), (32768, 2147657216)])
def test_vocabulary_parallel_cross_entropy(vocab: int, measured: int) -> None:
    loss = megatron(2, "vocab-parallel")
    its_gradient = 2
    assert 2048 * 4 * vocab * (its_gradient + max(loss.forward, loss.backward)) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(("vocab", "measured"), [(4096, 402826752), (16384, 1610786304), (32768, 3221399040)])
def test_fused_vocabulary_parallel_cross_entropy(vocab: int, measured: int) -> None:
    loss = megatron(2, "fused")
    its_gradient = 2
    assert 2048 * 4 * vocab * (its_gradient + max(loss.forward, loss.backward)) == pytest.approx(measured, rel=WITHIN)


def _mlp_peak(tokens: int, hidden: int, width: int, activation: str, fused: frozenset[str]) -> float:
    tape, setting = Tape(), Setting(activation=activation, fused=fused)
    x = tape.enter("input", hidden, 2)
    counted = tape.count(linear(tape, setting, gated(tape, setting, x, ["gate_proj", "up_proj", "down_proj"], width), "down_proj", hidden))
    weights = 3 * hidden * width * 2
    leaf, its_gradient, result = (hidden * 2 * tokens for _ in range(3))
    if "swiglu" in fused:  # gradients lie in what was saved; the new gradient of the input comes beside the old one
        worst = (max(s.saved[0] + s.live[0] for s in counted.backward) + hidden * 2) * tokens
    else:
        worst = (counted.total[0] + max(s.live[0] for s in counted.backward)) * tokens
    return 2 * weights + leaf + its_gradient + result + worst  # weights and their gradients of the round before


@pytest.mark.parametrize(
    ("batch", "sequence", "activation", "measured"), [(4, 4096, "silu", 3619946496), (8, 2048, "gelu", 3619946496), (8, 4096, "gelu", 6681788416)]
)
def test_gated_mlp_of_hugging_face(batch: int, sequence: int, activation: str, measured: int) -> None:
    assert _mlp_peak(batch * sequence, 4096, 11008, activation, frozenset()) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(("batch", "sequence", "measured"), [(4, 4096, 2669936640), (8, 4096, 4691591168)])
def test_gated_mlp_of_liger(batch: int, sequence: int, measured: int) -> None:
    assert _mlp_peak(batch * sequence, 4096, 11008, "silu", frozenset({"swiglu"})) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(("tokens", "chunk"), [(4096, 128), (8192, 256), (16384, 512), (32768, 1024)])
def test_chunks_of_the_fused_linear_loss(tokens: int, chunk: int) -> None:
    """128,256 entries over 4,096 hidden: 32 chunks."""
    assert chunk_of(tokens, 4096, 128256) == chunk
