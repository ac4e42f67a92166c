"""A sequence cut over ranks: that the ring runs, by the bytes it sends, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from advisor.simulation.request import CannotProbe

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

CUT: dict[str, Any] = {
    "model": {"source": "torchtitan"}, "framework": {"name": "torchtitan"},
    "precision": {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "reduce": "fp32"},
    "parallel": {"strategy": "fsdp2", "shard": 4, "context": 4}, "hardware": {"gpu": "a100-80gb", "gpus_per_node": 4},
}  # fmt: skip


def test_keys_and_values_go_round_forward_and_their_gradients_backward(tiny: Callable[..., Any]) -> None:
    """Two layers, ranks of 8 tokens: gathered once each in bf16, 4 heads of 16 (repeated); gradients in fp32, handed on four times each."""
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **CUT))
    rank = 2 * 2 * 8 * 4 * 16  # K and V, two sequences, tokens, heads, width
    sent = [(s.operator, s.requested) for s in recorder.storages.values() if s.step == 1 and s.phase in ("forward", "backward")]
    gathered = [size for operator, size in sent if operator == "_c10d_functional::all_gather_into_tensor"]
    handed = [size for operator, size in sent if operator == "_c10d_functional::all_to_all_single"]
    assert gathered == [4 * rank * 2] * 2 * 2  # for the forward passes, and again for the backward passes
    assert handed == [rank * 4] * 2 * 4


def test_what_a_rank_keeps_is_of_its_own_tokens(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **CUT))
    logits = [s.shape for s in recorder.storages.values() if s.step == 1 and s.phase == "forward" and s.module == "output"]
    assert (16, 256) in logits or (2, 8, 256) in logits
    assert not any(32 in shape[:2] or 64 in shape[:1] for shape in logits)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"framework": {"name": "custom"}, "model": {"source": "huggingface"}}, r"outside torchtitan and accelerate \(custom's own\)"),
        ({"framework": {"name": "hf-trainer"}, "model": {"source": "huggingface"}, "activations": {"loss": "fused-linear"}}, "under other losses"),
        ({"parallel": {"context_kind": "ulysses"}}, "Ulysses"),
        ({"parallel": {"context": 3}}, "other ranks than FSDP2's"),
        ({"parallel": {"shard": 4, "pipeline": 2, "microbatches": 4}, "hardware": {"gpus_per_node": 8}}, "beside other ways"),
        ({"precision": {"compute": "fp32", "mixed": "none"}}, "without fused attention"),
    ],
)
def test_what_a_ring_is_not_run_with_is_said(sections: dict[str, Any], said: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation import scope

    merged = {**CUT, **{name: {**CUT.get(name, {}), **values} for name, values in sections.items()}}
    with pytest.raises(CannotProbe, match=said):
        scope.check(tiny("llama", **merged))


def test_layers_that_look_at_a_window_are_refused_as_accelerate_refuses_them(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    with pytest.raises(CannotProbe, match="sliding_attention"):
        record(tiny("gemma2", **{**CUT, "framework": {"name": "hf-trainer"}, "model": {"source": "huggingface"}}))


@pytest.mark.parametrize(("rank", "masks"), [(0, 2), (3, 0)])
def test_all_ranks_but_the_last_make_a_mask_of_jumping_positions(rank: int, masks: int, tiny: Callable[..., Any]) -> None:
    """Eight tokens a rank: the first has the first and the last four of a sequence, the last one the eight in the middle."""
    from advisor.simulation.step import record

    job = {**CUT, "framework": {"name": "hf-trainer"}, "model": {"source": "huggingface"}}
    recorder = record(tiny("llama", **{**job, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"}}), rank=rank)
    made = [s for s in recorder.storages.values() if s.operator == "aten::bitwise_and.Tensor" and s.step == 1 and s.shape == (2, 1, 8, 8)]
    assert len(made) == masks
