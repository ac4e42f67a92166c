"""Failures written from what the libraries print, in other frameworks and words than the dev cases: a mark that only fits those fails here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.diagnosis import diagnose

WRITTEN: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "written.yaml").read_text(encoding="utf-8"))
LEAST_RIGHT = 0.95


def _first(case: dict[str, Any]) -> list[str]:
    return [f.cause for f in diagnose(list(case["files"].items())).findings]


@pytest.mark.parametrize("case", WRITTEN, ids=[f"{n}: {c['causes'][0]}" for n, c in enumerate(WRITTEN)])
def test_a_right_cause_is_among_the_first_three(case: dict[str, Any]) -> None:
    found = _first(case)[:3]
    assert set(found) & set(case["causes"]), found


def test_the_first_is_right() -> None:
    missed = [(c["causes"], _first(c)[:3]) for c in WRITTEN if not set(_first(c)[:1]) & set(c["causes"])]
    assert len(missed) <= (1 - LEAST_RIGHT) * len(WRITTEN), missed
