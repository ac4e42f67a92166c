"""What the sharding code is told of: what a job does not state is left to its own default, which for the root is another one."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

TWO = {"hardware": {"gpu": "a100-80gb", "gpus_per_node": 2}}
SHARDED = {"strategy": "fsdp2", "shard": 2, "replicate": 1}


def _told(run: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """``reshard_after_forward`` of each unit, None where it is not told, in the order in which they are made."""
    import torch.distributed.fsdp as fsdp

    from advisor.simulation import building
    from advisor.simulation.ranks import dividing, group

    original: Any = fsdp.fully_shard
    found: list[tuple[str, Any]] = []

    def noting(module: Any, **options: Any) -> Any:
        found.append((type(module).__name__, options.get("reshard_after_forward")))
        return original(module, **options)

    monkeypatch.setattr(fsdp, "fully_shard", noting)
    with group.opened(2, 0):
        dividing.divided(building.build(run, "meta"), dividing.written(run), "meta")
    return found


def test_the_root_stays_whole_where_the_job_says_nothing(tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = _told(tiny("llama", **TWO, parallel=SHARDED), monkeypatch)
    assert found == [("LlamaDecoderLayer", True), ("LlamaDecoderLayer", True), ("LlamaForCausalLM", None)]


@pytest.mark.parametrize("stated", [True, False])
def test_what_the_job_states_is_for_the_root_too(stated: bool, tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = _told(tiny("llama", **TWO, parallel={**SHARDED, "reshard_after_forward": stated}), monkeypatch)
    assert {told for _, told in found} == {stated}


def test_a_frameworks_own_default_is_passed_on(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.ranks import dividing

    titan = {"framework": {"name": "torchtitan"}, "model": {"source": "torchtitan"}}
    staged = tiny("llama", **titan, parallel={**SHARDED, "pipeline": 2}, hardware={"gpu": "a100-80gb", "gpus_per_node": 4})
    assert staged.effective.parallel.reshard_after_forward is False
    assert dividing.written(staged).parallel.reshard_after_forward is False


@pytest.mark.parametrize(
    "parallel",
    [{"strategy": "ddp", "shard": 1, "replicate": 2}, SHARDED, {"strategy": "fsdp1", "shard": 2, "replicate": 1}],
    ids=lambda parallel: str(parallel["strategy"]),
)
def test_what_gathers_and_reduces_is_the_estimates_communication(parallel: dict[str, Any], tiny: Callable[..., Any]) -> None:
    from advisor.arithmetic import estimate
    from advisor.beside import parts_beside
    from advisor.simulation import timeline
    from advisor.simulation.step import STEPS, record

    run = tiny("llama", **TWO, parallel=parallel, precision={"weights": "bf16", "compute": "bf16"}, batch={"seq_len": 512})
    seen = record(run)
    probed = timeline.ledger(seen.events, seen.storages, seen.moments, vocab=256, last_step=STEPS - 1, software={})
    parts = parts_beside(probed, estimate(run), "loss.backward")
    assert parts["communication"][1] > 0
    assert parts["communication"][0] == pytest.approx(parts["communication"][1], rel=0.02)
