"""The article before a card's name, and figures that are printed: as they are read aloud, with their unit, without a sign of nothing."""

from __future__ import annotations

import re

import pytest

from advisor import accuracy, cards
from advisor.cli import main
from advisor.spoken import with_article


@pytest.mark.parametrize(
    ("article", "names"),
    [
        (
            "an",
            ["A100 SXM4 80 GB", "A10", "RTX 3090", "H100", "h100-80gb", "L4", "L40S", "MI300X", "NVIDIA A100", "AMD Instinct", "Apple silicon", "8 GB card"],
        ),
        ("a", ["V100", "T4", "t4-16gb", "B200", "GB200", "GH200 96 GB", "P40", "GTX 1080 Ti", "TITAN RTX", "Radeon RX 7900 XT", "Gaudi2", "Quadro RTX 8000"]),
        ("a", ["24 GB card", "118 GB card", "Tesla V100", ""]),
    ],
)
def test_the_article_is_the_spoken_names(article: str, names: list[str]) -> None:
    assert [with_article(name) for name in names] == [f"{article} {name}" for name in names]


@pytest.mark.parametrize("card", cards.catalogue().values(), ids=lambda c: c.id)
def test_what_a_card_can_use_is_said_with_it(card: cards.Card) -> None:
    assert with_article(card.name) in card.usable()[1]


@pytest.mark.parametrize(("bias", "shown"), [(-0.004, "0.0 %"), (0.03, "0.0 %"), (0.0, "0.0 %"), (-0.06, "-0.1 %"), (1.24, "+1.2 %"), (None, "not known")])
def test_a_bias_of_nothing_has_no_sign(bias: float | None, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = {"id": "one", "measured_gib": 81.2, "predicted_gib": 80.1, "low_gib": 75.0, "high_gib": 85.0, "ape": 1.3}
    found = {"n": 1, "skipped": [], "cases": [case], "median_ape": 1.3, "p90_ape": 1.3, "bias": bias, "inside_interval": 1.0, "false_fits": 0, "by_kind": {}}
    monkeypatch.setattr(accuracy, "score", lambda *_, **__: found)
    assert main(["accuracy"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"bias {shown}," in out
    listed = out[out.index("one: ") :]
    assert len(re.findall(r"\d\.\d\b", listed)) == 5 and re.search(r"75\.0 to 85\.0 GiB", listed)
