"""Cards that differ in memory alone share forms, estimates and ranges: each is offered what it would be offered alone, judged by the whole range."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from advisor.arithmetic import estimate
from advisor.cards import catalogue
from advisor.job import read_job
from advisor.planner.before import before
from advisor.planner.forms import alike
from advisor.run import Run, resolve
from advisor.verdict import judge
from tests.planner.random_jobs import random_run

CARDS = ("rtx4090-24gb", "l40s-48gb", "a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")
JOBS = [resolve(read_job(yaml.safe_load(path.read_text(encoding="utf-8")))) for path in sorted((Path(__file__).parents[1] / "jobs").glob("*.yaml"))]
UNSLOTH = resolve(
    read_job({"version": 1, "model": {"name": "Qwen/Qwen2.5-7B"}, "method": {"kind": "lora", "base": "nf4"}, "framework": {"name": "unsloth"},
              "batch": {"micro_batch": 16, "seq_len": 8192}, "hardware": {"gpu": "h100-80gb"}})
)  # fmt: skip
RUNS = [*JOBS, UNSLOTH, *map(random_run, range(16))]


@pytest.mark.parametrize("run", RUNS)
def test_an_offer_is_the_same_alone_and_among_others(run: Run) -> None:
    together = before(run, cards=CARDS, counts=(1, 8), total_tokens=10**8)
    alone = [offer for card in CARDS for offer in before(run, cards=(card,), counts=(1, 8), total_tokens=10**8)]
    assert sorted(together, key=lambda o: (CARDS.index(o.card), o.cards)) == sorted(alone, key=lambda o: (CARDS.index(o.card), o.cards))


@pytest.mark.parametrize("run", RUNS)
def test_the_verdict_is_that_of_the_whole_range(run: Run) -> None:
    for offer in before(run, cards=CARDS, counts=(1, 8)):
        if offer.used_bytes <= offer.usable_bytes:
            assert offer.verdict == judge(offer.run, estimate(offer.run))[0], (offer.card, offer.cards)


def test_cards_of_one_kind_share_and_a_job_that_counts_the_room_has_its_own_for_each() -> None:
    small, large, older = (catalogue()[name] for name in ("h100-80gb", "h200-141gb", "a100-80gb"))
    assert alike(JOBS[0], small) == alike(JOBS[0], large) != alike(JOBS[0], older)
    assert alike(UNSLOTH, small) != alike(UNSLOTH, large)
