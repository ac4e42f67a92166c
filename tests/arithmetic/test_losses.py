"""Bytes of a token and vocabulary entry by loss form and version: the sums that the judged runs showed."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from advisor.arithmetic.logits import megatron
from advisor.arithmetic.losses import materialised, torchtune
from tests.arithmetic.jobs import job


@pytest.mark.parametrize(
    ("form", "version", "own", "autocast", "forward"),
    [
        ("full-fp32", (4, 48, 1), False, False, 14),  # logits 2 + fp32 4 + shifted copy 4 + log-softmax 4
        ("full-fp32", (4, 45, 2), False, False, 12),  # the fp32 cast took the logits' place
        ("full-fp32", (5, 24), False, False, 10),  # labels are shifted, not logits
        ("full-fp32", None, False, False, 10),
        ("full-fp32", (4, 48, 1), True, False, 6),  # GPT-BigCode: logits 2 + shifted copy 2 + log-softmax 2
        ("full-fp32", (4, 48, 1), True, True, 12),
        ("fused", (4, 48, 1), False, False, 10),
        ("fused", (4, 45, 2), False, False, 8),
        ("fused", (4, 48, 1), True, False, 4),
        ("fused", (4, 48, 1), True, True, 8),
    ],
)
def test_forward(form: str, version: tuple[int, ...] | None, own: bool, autocast: bool, forward: float) -> None:
    assert materialised(form, 2, version, own, autocast).forward == forward


def test_the_backward_of_an_fp32_loss_is_three_fp32_tensors() -> None:
    for version in ((4, 45, 2), (4, 48, 1), (5, 0)):
        assert materialised("full-fp32", 2, version, False, False).backward == 12


def test_vocabulary_parallel_works_in_place() -> None:
    assert megatron(2, "vocab-parallel").forward == 6
    assert megatron(2, "fused").forward == 10


@pytest.mark.parametrize("framework", ["torchtitan", "axolotl", "trl", "torchtune"])
def test_a_loss_in_chunks_holds_less_than_a_whole_one(framework: str) -> None:
    sizes = {}
    for form in ("full-fp32", "chunked"):
        source = framework if framework.startswith("torch") else "huggingface"
        ledger = estimate(job(activations={"loss": form}, framework={"name": framework}).but(model={"source": source}))
        sizes[form] = sum(h.bytes for h in ledger.holdings if h.part == "logits" and "loss.backward" in h.moments)
    assert 0 < sizes["chunked"] < sizes["full-fp32"]


@pytest.mark.parametrize(("version", "bytes_each"), [((4, 45, 2), 10), ((4, 48, 1), 10), ((4, 49), 6)])
def test_a_fused_loss_leaves_the_narrow_logits_block_beside_the_wide_ones(version: tuple[int, ...], bytes_each: float) -> None:
    """bf16 logits 2, their fp32 copy 4 and, until 4.49, the shifted copy 4: the narrow block serves neither, whether or not it still lives."""
    assert materialised("fused", 2, version, own_loss=False, autocast=True).cached == bytes_each


def test_a_loss_that_the_trainer_compiles_with_the_model_is_never_wide() -> None:
    def backward(**more: object) -> int:
        ledger = estimate(job(activations={"compile": True}, **more))
        return sum(h.bytes for h in ledger.holdings if h.part == "logits" and "loss.backward" in h.moments)

    entries = 2 * 512 * 8000
    assert backward() == entries * 2 * 2  # bf16 logits and their gradient
    assert backward(framework={"name": "custom"}) == entries * 12  # what a loop of one's own compiles is not known


def test_torchtune_widens_whole_logits_and_named_a_shifted_copy_of_them_until_its_release_0_3() -> None:
    old, new = torchtune(2, None), torchtune(2, (0, 6, 1))
    assert (old.forward, old.backward, old.outputs) == (12, 12, 4)
    assert (new.forward, new.backward, new.outputs) == (8, 12, 0)
    ledger = estimate(job(activations={"loss": "full"}, framework={"name": "torchtune"}).but(model={"source": "torchtune"}))
    entries = 2 * 512 * 8000
    assert sum(h.bytes for h in ledger.holdings if h.part == "logits" and "loss.backward" in h.moments) == 16 * entries
