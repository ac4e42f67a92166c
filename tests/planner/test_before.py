"""Before the run: what each number of cards takes; solved limits; parallel layouts as a step of the plan."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.planner.before import recommended
from advisor.planner.constraints import Constraints
from advisor.planner.storage import host_of_node
from advisor.planning import before, limits, plan
from advisor.run import Run, resolve
from advisor.units import GIB
from advisor.verdict import judge

TOKENS = 100_000_000


def run(**sections: Any) -> Run:
    job: dict[str, Any] = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "objective": "sft",
        "batch": {"micro_batch": 4, "seq_len": 2048, "gradient_accumulation": 8}, "hardware": {"gpu": "a100-80gb"}, "framework": {"name": "trl"},
    }  # fmt: skip
    for name, content in sections.items():
        job[name] = {**job.get(name, {}), **content} if isinstance(content, dict) else content
    return resolve(read_job(job))


def test_offers_are_what_they_say() -> None:
    found = before(run(), total_tokens=TOKENS, prices={"a100-80gb": 2.0, "rtx4090-24gb": 0.5}, counts=(1, 2, 8))
    assert {(o.card, o.cards) for o in found} == {(c, n) for c in ("a100-80gb", "rtx4090-24gb") for n in (1, 2, 8)}
    for offer in found:
        ledger = estimate(offer.run)
        used = ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")
        assert used == offer.used_bytes
        assert (used > offer.usable_bytes) == (offer.verdict == "ooms")
        b = offer.run.job.batch
        assert (b.micro_batch or 0) * (b.gradient_accumulation or 0) * offer.cards == 32, "the samples of a step stay"
        assert (offer.hours is None) == (offer.verdict == "ooms")
        if offer.hours is not None and offer.cost is not None:
            assert 0 < offer.hours.low <= offer.hours.expected <= offer.hours.high
            price = {"a100-80gb": 2.0, "rtx4090-24gb": 0.5}[offer.card]
            assert offer.cost.expected == pytest.approx(offer.hours.expected * offer.cards * price)
    fitting = [o for o in found if o.verdict != "ooms"]
    assert found[: len(fitting)] == fitting, "those that fit come first"


def test_time_and_money_bound_the_offers() -> None:
    found = before(run(), total_tokens=TOKENS, prices={"a100-80gb": 2.0}, most_hours=1e-3)
    assert all(o.within is False for o in found)
    assert all(o.within is None for o in before(run(), total_tokens=TOKENS, cards=["a100-80gb"], counts=(1,)))


def test_money_is_not_compared_with_hours() -> None:
    found = before(run(), total_tokens=TOKENS, cards=("a100-80gb", "h100-80gb"), prices={"a100-80gb": 1000.0}, counts=(1, 8))
    fitting = [o.cost is not None for o in found if o.verdict == "fits"]
    assert True in fitting and False in fitting and fitting == sorted(fitting, reverse=True)


def test_the_best_comes_first_and_keeps_to_the_limits() -> None:
    found = before(run(), total_tokens=TOKENS, cards=("a100-80gb", "h100-80gb", "h200-141gb"))
    sure = [o for o in found if o.verdict == "fits"]
    assert found[: len(sure)] == sure, "what is only expected to fit comes after what surely does"
    spent = [o.hours.expected * o.cards for o in sure if o.hours is not None]
    assert len(spent) == len(sure) > 3 and spent == sorted(spent), "card-hours are what is paid for"
    assert recommended(found) is found[0]
    bounded = before(run(), total_tokens=TOKENS, cards=("a100-80gb", "h100-80gb", "h200-141gb"), most_hours=spent[0] / 2)
    best = recommended(bounded)
    assert best is not None and best.hours is not None and best.hours.high <= spent[0] / 2 and best is bounded[0]
    assert recommended(before(run(), total_tokens=TOKENS, cards=("a100-80gb",), most_hours=1e-3)) is None


def test_a_cut_batch_is_said() -> None:
    """Eight samples on eight cards are one on each: less memory a card than the job as written, so it must not go unsaid."""
    written = run(batch={"micro_batch": 8, "gradient_accumulation": 1}, activations={"checkpointing": "full"})
    one, eight = (before(written, cards=["b200-180gb"], counts=(n,))[0] for n in (1, 8))
    assert not eight.changes and eight.run.job.batch.micro_batch == 1
    assert eight.batch == "micro batch 1 on each card in place of 8, a step keeps its samples" and eight.to_json()["micro_batch"] == 1
    assert one.run.job.batch.micro_batch == 8 and one.batch is None
    three = before(run(batch={"micro_batch": 3, "gradient_accumulation": 1}), cards=["b200-180gb"], counts=(2,))[0]
    assert three.batch == "micro batch 1 on each card in place of 3, 2 samples a step in place of 3"


def test_without_tokens_there_are_no_hours() -> None:
    assert all(o.hours is None and o.cost is None for o in before(run(), cards=["a100-80gb"], counts=(1,)))
    with pytest.raises(ValueError, match="no card"):
        before(run(), cards=["a100-81gb"])


def test_a_checkpoint_of_adapters_is_small() -> None:
    full = before(run(), cards=["h100-80gb"], counts=(8,))[0].storage
    lora = before(run(method={"kind": "lora", "rank": 16}), cards=["h100-80gb"], counts=(8,))[0].storage
    assert full.checkpoint_bytes > 8e9 * (2 + 8)  # 16-bit weights and two fp32 moments
    assert lora.checkpoint_bytes < 2e9
    assert lora.weights_bytes < lora.checkpoint_bytes


def test_loading_is_counted_once_a_node() -> None:
    ledger = estimate(run(hardware={"gpus_per_node": 8}, parallel={"strategy": "fsdp2", "shard": 8}))
    assert host_of_node(ledger, 8) == ledger.host_peak()
    away = estimate(
        run(
            hardware={"gpus_per_node": 8},
            parallel={"strategy": "fsdp2", "shard": 8},
            offload={"parameters": "cpu", "optimizer": "cpu", "gradients": "cpu"},
            load={"materialise": "rank-0"},
        )
    )
    assert host_of_node(away, 8) > away.host_peak()


def test_limits_are_solved() -> None:
    found = limits(run(method={"kind": "lora"}))
    assert found is not None
    assert (found.micro_batch or 0) >= 4
    assert (found.seq_len or 0) >= 2048
    assert found.model is not None
    assert found.model[1] > 8e9
    assert limits(run(hardware={"gpu": None})) is None


@pytest.mark.parametrize(("model", "nodes"), [("meta-llama/Llama-3.1-70B", 8), ("meta-llama/Llama-3.1-405B", 2048)])
def test_a_layout_is_chosen_as_a_whole(model: str, nodes: int) -> None:
    start = run(
        model={"name": model}, objective="pretrain", batch={"micro_batch": 1, "seq_len": 8192, "gradient_accumulation": 16},
        hardware={"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": nodes}, parallel={"strategy": "megatron-distributed", "shard": 8 * nodes},
        framework={"name": "megatron-lm"},
    )  # fmt: skip
    began = time.process_time()
    made = plan(start)
    assert time.process_time() - began < 2.0
    assert made.fits
    last = made.steps[-1].run
    assert last is not None
    assert last.world == start.world
    assert (last.job.parallel.tensor or 1) <= 8, "a tensor group stays inside a node"
    assert all(not step.fits_after for step in made.steps[:-1])
    assert {"tensor-parallel", "pipeline-parallel"} & {s.technique for s in made.steps}


def test_nothing_that_is_not_allowed_is_in_an_offer_and_room_is_left() -> None:
    start, cards, room = run(), ("a100-80gb",), 45 * GIB
    free = before(start, cards=cards)
    used = {name for offer in free for name in offer.changes}
    assert used
    without = before(start, cards=cards, allow=Constraints(exclude=frozenset(used)))
    assert not {name for offer in without for name in offer.changes} & used
    assert all(len(offer.changes) <= 1 for offer in before(start, cards=cards, allow=Constraints(most_changes=1)))
    assert any(offer.usable_bytes - offer.used_bytes < room for offer in free if offer.verdict == "fits")
    roomy = before(start, cards=cards, margin_bytes=room)
    assert any(offer.verdict == "fits" for offer in roomy)
    assert all(offer.usable_bytes - offer.used_bytes >= room for offer in roomy if offer.verdict == "fits")


@pytest.mark.parametrize("seq_len", [1024, 8192, 32768])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_verdict_without_a_range_is_the_one_with_it(seq_len: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("advisor.planner.before")
    asked = run(batch={"micro_batch": 8, "seq_len": seq_len}, method={"kind": method}, activations={"checkpointing": "full"})
    cards = ("rtx4090-24gb", "a100-80gb", "h100-80gb", "h200-141gb", "mi300x-192gb")
    ranges: list[str] = []

    def counted(tried: Run, _: Any) -> Any:  # the ledger may be that of a larger card of the same kind
        ranges.append(judge(tried, estimate(tried))[0])
        return judge(tried, estimate(tried))

    monkeypatch.setattr(module, "judge", counted)
    quick = [offer.to_json() for offer in before(asked, total_tokens=TOKENS, cards=cards)]
    few = len(ranges)
    ranges.clear()
    monkeypatch.setattr(module, "_verdict", lambda tried, ledger: counted(tried, ledger)[0])
    assert [offer.to_json() for offer in before(asked, total_tokens=TOKENS, cards=cards)] == quick
    assert few <= len(ranges)
    assert few < len(ranges) or (seq_len, method) != (8192, "full"), "some of these are past their card's edge by the estimator's own error"
