"""Plans of the eight reference jobs on cards of 24, 48 and 80 GB, pinned; and what an expert would call silly in any of them."""

from __future__ import annotations

import pytest

from tests.planner.pinned import CARDS, JOBS, read_fixture, run_of, text_of

LINK_BOUND = ("offload-optimizer", "offload-parameters", "offload-nvme", "offload-activations")


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("job", sorted(file.stem for file in JOBS.glob("j*.yaml")))
def test_the_plan_is_the_pinned_one(job: str, card: str) -> None:
    from advisor.planning import plan

    made = plan(run_of(job, card))
    assert text_of(made) == read_fixture()[f"{job} on {card}"], "if the new plan is the better one: python -m tests.planner.pinned"
    names = [step.technique for step in made.steps]
    copies = [n for n, step in enumerate(made.steps) if step.tier in ("copies", "fallback")]
    away = [n for n, name in enumerate(names) if name in LINK_BOUND]
    assert not (copies and away) or max(copies) < min(away), "no offload while a copy remains"
    assert "tensor-parallel" not in names or "gradient-checkpointing" in names or made.steps[0].run is None or made.steps[0].run.world > 1
