"""What a bound of a version says of a range of versions: all of it, none of it, or nothing certain."""

from __future__ import annotations

import pytest

from advisor.frameworks.bounds import holds
from advisor.frameworks.defaults import rules


@pytest.mark.parametrize(
    ("bound", "wanted", "expected"),
    [
        ("<4.52", ">=5", False),
        ("<4.52", ">=4.55", False),
        ("<4.52", "<5", True),
        ("<4.52", ">=4.36", None),
        (">=4.48", "<4.46", False),
        (">=4.48", ">=4.46", True),
        (">=4.46,<4.52", ">=4.36,<5", True),
        ("<4.52,>=4.46", "<4.46", False),
        ("<4.52", "==4.40.1", None),
        ("nonsense", ">=5", None),
        (">=5,<4.46", ">=5", None),
        (">=5,<4.46", "<4.46", None),
    ],
)
def test_a_bound_against_a_range(bound: str, wanted: str, expected: bool | None) -> None:
    assert holds(bound, wanted) is expected


def test_a_default_that_needs_a_known_version_is_no_alternative_where_it_is_not() -> None:
    open_version, old_torch = rules("hf-trainer"), rules("hf-trainer", bounds=(("torch", "<2.1"),))
    assert open_version["activations.attention"][0].value == "sdpa"
    assert old_torch["activations.attention"][0].value == "eager"
    assert rules("hf-trainer", (("torch", "2.0.1"),))["activations.attention"][0].value == "eager"
    assert rules("hf-trainer", (("torch", "2.3.0"),))["activations.attention"][0].value == "sdpa"


def test_what_only_later_releases_do_is_excluded_by_a_bound() -> None:
    assert {rule.value for rule in rules("trl", bounds=(("transformers", "<4.52"),))["activations.checkpointing"]} == {"none"}


@pytest.mark.parametrize(
    ("bound", "wanted", "answer"),
    [
        (">4.36", "<=4.36", False),
        (">=4.36", "<=4.36", None),  # 4.36 itself is in both
        ("<=4.36", ">4.36", False),
        (">4.36,<5", ">=4.36,<5", True),
        (">=4.36,<5", ">4.36,<5", None),
    ],
)
def test_whether_the_edge_belongs_to_it_is_heard(bound: str, wanted: str, answer: bool | None) -> None:
    assert holds(bound, wanted) is answer
