"""Optimizers by the short names that people write, and the same words for other things."""

from __future__ import annotations

import pytest

from advisor.reading.spoken_claims import claims_of


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("I fine-tune it with SGD in bf16 on one card.", "sgd"),
        ("The optimizer is Lion, weight decay 0.1.", "lion"),
        ("We run the Muon optimizer on 8 cards.", "muon"),
        ("The repository lion-ai/trainer crashes with lion-ai/model.", None),
        ("Figures of SGD are in the appendix.", None),
    ],
)
def test_a_short_name_is_an_optimizer_where_it_is_used(text: str, named: str | None) -> None:
    assert dict(claims_of(text)).get("optimizer.name") == named


def test_an_optimizer_that_did_not_help_is_weighed() -> None:
    assert ("optimizer.name", "weighed") in list(claims_of("Would it fit with SGD instead?"))
