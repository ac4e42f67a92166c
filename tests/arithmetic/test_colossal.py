"""ColossalChat's losses, its reference's cache and the gradients its ZeRO keeps, against the same operations under a tracker of storages (torch 2.13, CPU)."""

from __future__ import annotations

import pytest

from advisor.arithmetic import context, estimate
from advisor.arithmetic.logits import of
from advisor.job import Job
from advisor.run import resolve
from tests.arithmetic.jobs import TINY, job


def chat(objective: str, reference: str = "none", transformers: str = "4.39.3", *, framework: str = "colossalchat", **sections: object) -> Job:
    return job(
        objective=objective, reference=reference, precision={"weights": "bf16", "compute": "bf16", "mixed": "deepspeed", "master": "fp32"},
        parallel={"strategy": "zero2", "shard": 2}, framework={"name": framework, "versions": {"transformers": transformers}}, **sections,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "reference", "transformers", "forward", "backward", "named"),
    [
        ("dpo", "copy", "4.39.3", 18, 10, 8),  # two named, the policy's log-softmax, the reference's narrow and fp32 logits
        ("dpo", "copy", "4.57.1", 8, 5, 4),
        ("dpo", "none", "4.39.3", 10, 10, 4),  # SimPO
        ("orpo", "none", "4.39.3", 16, 16, 4),
        ("orpo", "none", "4.57.1", 16, 14, 6),
    ],
)
def test_losses(objective: str, reference: str, transformers: str, forward: float, backward: float, named: float) -> None:
    found = of(context.read(resolve(chat(objective, reference, transformers))), "full-fp32")
    assert (found.forward, found.backward, found.outputs) == (forward, backward, named)


def test_chosen_and_rejected_are_rows_of_their_own_unless_the_framework_packs_pairs() -> None:
    tokens = context.read(resolve(chat("sft"))).tokens
    assert context.read(resolve(chat("dpo"))).tokens == 2 * tokens
    assert context.read(resolve(chat("dpo", framework="trl"))).tokens == 2 * tokens
    assert context.read(resolve(chat("dpo", framework="ms-swift"))).tokens == tokens


def test_the_reference_keeps_keys_and_values_of_every_layer_while_the_policy_waits() -> None:
    def cache(reference: str) -> int:
        return sum(h.bytes for h in estimate(chat("dpo", reference)).holdings if h.part == "decode-cache")

    tokens = context.read(resolve(chat("dpo"))).tokens
    width = 2 * TINY["num_key_value_heads"] * TINY["hidden_size"] // TINY["num_attention_heads"]
    assert cache("copy") == TINY["num_hidden_layers"] * tokens * width * 2
    assert cache("none") == cache("precomputed") == 0


def test_with_the_optimizer_on_the_host_the_partition_of_gradients_stays_on_the_card() -> None:
    def partition(framework: str) -> int:
        held = estimate(chat("sft", framework=framework, offload={"optimizer": "cpu"})).holdings
        return sum(h.bytes for h in held if h.part == "gradients" and h.layout == "sharded" and h.device == "gpu")

    assert partition("colossalchat") > 0
    assert partition("deepspeed") == 0
