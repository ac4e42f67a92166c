"""What a cure saves, held against what is over the card."""

from __future__ import annotations

import pytest

from advisor.diagnosis.sufficing import MARK, weighed
from advisor.job import read_job
from advisor.report import Finding
from advisor.rules.estimating import ledger_of
from advisor.run import resolve

RUN = resolve(
    read_job(
        "version: 1\nmodel: {name: Qwen/Qwen2.5-7B}\nmethod: {kind: full}\nbatch: {micro_batch: 4, seq_len: 2048}\nparallel: {strategy: none}\n"
        "hardware: {gpu: h100-80gb}\n"
    )
)
LEDGER = ledger_of(RUN)
assert LEDGER is not None
OVER = 1 << 30
CARD = LEDGER.peak().bytes - OVER


def _finding(cause: str, confidence: float, saves: int | None) -> Finding:
    return Finding(cause, "batch", cause, confidence, saves, (), (), None)


def _order(*found: Finding, capacity: int | None = CARD) -> list[str]:
    return [f.cause for f in weighed(found, RUN, capacity)]


def test_a_cure_that_saves_nothing_does_not_lead_where_another_covers_what_is_over() -> None:
    found = weighed((_finding("a", 0.5, 0), _finding("b", 0.3, 2 * OVER)), RUN, CARD)
    assert [f.cause for f in found] == ["b", "a"]
    assert found[1].evidence[-1].mark == MARK
    none_before, none_after = 0.2 / 0.3, (1 - sum(f.confidence for f in found)) / found[0].confidence
    assert none_after == pytest.approx(none_before)


def test_it_stays_where_nothing_covers_it_or_a_saving_is_not_known() -> None:
    assert _order(_finding("a", 0.5, 0), _finding("b", 0.3, OVER // 2)) == ["a", "b"]
    assert _order(_finding("a", 0.5, None), _finding("b", 0.3, 2 * OVER)) == ["a", "b"]
    assert _order(_finding("a", 0.5, OVER // 2), _finding("b", 0.3, 2 * OVER)) == ["a", "b"]


def test_it_stays_where_the_estimate_is_not_over_or_the_card_is_not_known() -> None:
    assert _order(_finding("a", 0.5, 0), _finding("b", 0.3, 2 * OVER), capacity=CARD + 2 * OVER) == ["a", "b"]
    assert _order(_finding("a", 0.5, 0), _finding("b", 0.3, 2 * OVER), capacity=None) == ["a", "b"]
