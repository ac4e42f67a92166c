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
        ({"framework": {"name": "hf-trainer"}, "model": {"source": "huggingface"}}, r"outside torchtitan's model \(hf-trainer's own\)"),
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
