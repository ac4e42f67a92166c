"""With the optimizer on the host, the masters, the moments and the gradients that it steps are all there."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from advisor.job import Job
from advisor.ledger import Ledger
from advisor.run import resolve
from tests.arithmetic.jobs import job

ELEMENTS = 8_030_261_248  # Llama-3.1-8B, config.json of the hub model


def ledger(strategy: str, place: str) -> Ledger:
    return estimate(
        resolve(
            Job().but(
                model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "full"}, precision={"weights": "bf16", "compute": "bf16"},
                batch={"micro_batch": 1, "seq_len": 2048}, parallel={"strategy": strategy, "shard": 8}, offload={"optimizer": place},
                hardware={"gpu": "h100-80gb", "gpus_per_node": 8},
            )
        )
    )  # fmt: skip


def on_host(found: Ledger) -> dict[str, int]:
    return {h.name: h.bytes for h in found.holdings if h.device == "host" and "step.update" in h.moments}


@pytest.mark.parametrize(("strategy", "gradients"), [("zero2", 4), ("zero3", 2)])
def test_a_parameter_costs_its_rank_sixteen_bytes_or_fourteen_on_the_host(strategy: str, gradients: int) -> None:
    """4 master + 8 moments + the gradient: fp32 in stage 2, in the model's dtype in stage 3 (DeepSpeed's own estimate says 16 for both)."""
    held = on_host(ledger(strategy, "cpu"))
    steady = sum(size for name, size in held.items() if "sub-group" not in name)
    assert steady == pytest.approx((4 + 8 + gradients) * ELEMENTS / 8, rel=1e-3)


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_what_goes_to_the_host_is_not_on_the_card(strategy: str) -> None:
    away, here = ledger(strategy, "cpu"), ledger(strategy, "none")
    assert not on_host(here)
    assert {h.name for h in away.alive("step.update")} & {"fp32 masters", "optimizer states", "gradient partition"} == set()
    assert away.totals()["host"].expected >= sum(size for name, size in on_host(away).items())


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_gradient_shards_of_fsdp_are_where_their_parameters_are(strategy: str) -> None:
    """torchtune's 70B on 8 A100 with CPU offload, 13.9 GiB in its README, has no room for 16 GiB of gradient shards on the card."""
    base = Job().but(
        model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "full"}, precision={"weights": "bf16", "compute": "bf16"},
        batch={"micro_batch": 1, "seq_len": 2048}, parallel={"strategy": strategy, "shard": 8}, hardware={"gpu": "h100-80gb", "gpus_per_node": 8},
    )  # fmt: skip
    away = estimate(resolve(base.but(offload={"parameters": "cpu", "gradients": "cpu", "optimizer": "cpu"})))
    shards = [h for h in away.holdings if h.part == "gradients" and h.layout == "sharded"]
    last = {h.device for h in shards if "step.update" in h.moments}
    assert shards and last == {"host"}
    saved = sum(h.bytes for h in shards if h.device == "gpu" and "backward.root" in h.moments)
    assert saved == (pytest.approx(2 * ELEMENTS / 8, rel=1e-3) if strategy == "fsdp1" else 0)  # FSDP1's _saved_grad_shard ends with the backward pass
    assert max(h.bytes for h in shards) == pytest.approx(2 * ELEMENTS / 8, rel=1e-3)
    here = estimate(resolve(base))
    assert {h.device for h in here.holdings if h.part == "gradients" and h.layout == "sharded"} == {"gpu"}


def test_gradients_that_are_copied_away_leave_one_at_a_time() -> None:
    """torchao's CPUOffloadOptimizer(offload_gradients=True): a hook copies each accumulated gradient to the host and frees it."""
    here, away = (estimate(job(offload={"optimizer": "cpu", "gradients": where})) for where in ("none", "cpu"))
    whole = here.by_part("backward.root")["gradients"]
    assert away.by_part("backward.root")["gradients"] < 0.5 * whole
    assert any(h.device == "host" and h.part == "gradients" and h.bytes == whole for h in away.holdings)
