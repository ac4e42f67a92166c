"""Places in the libraries' own code where memory is allocated, copied, widened, gathered or kept: what their frames alone let an expert name.

Each ``sites_<family>.yaml`` holds ``stacks`` (frames that call several places) and ``sites``: ``under`` (a stack) and ``frames`` are
"file|function|line" from the outermost in, ``extra`` what was printed before, ``error`` the failure's text where it is no out-of-memory
sentence of torch. The first cause must be one of ``causes``, one of the first two steps of the plan one of ``fix``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.diagnosis import diagnose
from advisor.rules.samples import oom, trace


def _sites() -> list[Any]:
    found = []
    for file in sorted(Path(__file__).parent.glob("sites_*.yaml")):
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
        stacks = read.get("stacks") or {}
        found += [pytest.param(site, stacks.get(site.get("under"), []), id=site["id"]) for site in read["sites"]]
    return found


def _text(site: dict[str, Any], stack: list[str]) -> str:
    frames = [*stack, *site.get("frames", [])]
    said = site.get("error") or oom(site.get("request", "1.00 GiB"), allocated=76.94, unallocated=1.1, free=0.3)
    return (f"{site['extra']}\n" if site.get("extra") else "") + (trace(*frames) if frames else "") + said + "\n"


@pytest.mark.parametrize(("site", "stack"), _sites())
def test_a_place_in_a_library_names_its_cause(site: dict[str, Any], stack: list[str]) -> None:
    result = diagnose([("error.txt", _text(site, stack))])
    causes = [finding.cause for finding in result.findings]
    assert causes and causes[0] in site["causes"], (causes[:3], site["why"])
    steps = [step.technique for step in result.plan.steps[:2]]
    assert not site.get("fix") or set(steps) & set(site["fix"]), steps
    assert result.phase in site.get("phases", [result.phase]), result.phase
