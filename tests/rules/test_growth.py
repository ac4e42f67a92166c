"""Series and single figures: a place within a pass is no step, a line's tail is no other label, what stays after a clean-up is held."""

from __future__ import annotations

from advisor.evidence import Evidence, Sample
from advisor.rules import growth
from advisor.units import GIB


def _samples(*rows: tuple[str, float]) -> Evidence:
    return Evidence(samples=tuple(Sample(f"log.txt:{n}", label, allocated_bytes=round(size * GIB)) for n, (label, size) in enumerate(rows, 1)))


BACKWARD = (
    ("before the first step", 9.8),
    ("backward, 25 % of the blocks 13.4 GiB", 13.4),
    ("backward, 50 % of the blocks 16.5 GiB", 16.5),
    ("backward, 75 % of the blocks 19.9 GiB", 19.9),
)


def test_a_rise_within_the_backward_pass_is_no_growth_over_steps() -> None:
    evidence = _samples(*BACKWARD)
    assert growth.growing(evidence) is None
    both = growth.in_backward(evidence)
    assert both is not None
    assert both[1].allocated_bytes == round(19.9 * GIB)


def test_what_a_line_says_after_its_figure_is_no_other_label() -> None:
    rows = [(f"step {n} allocated {size} GB{tail}", size) for n, size, tail in ((1, 4.0, ""), (2, 8.0, ""), (3, 12.0, " (most so far)"))]
    assert growth.growing(_samples(*rows))


def test_what_stays_after_a_failed_try() -> None:
    assert growth.left_behind(_samples(("before the first try 1.6 GiB", 1.6), ("bs=64 failed, allocated now 14.9 GiB", 14.9)))
    assert growth.left_behind(_samples(("before the first try 1.6 GiB", 1.6), ("bs=64 failed, allocated now 1.7 GiB", 1.7))) is None


def test_from_run_to_run() -> None:
    assert growth.between_runs(_samples(("run 1 start 0.1 GiB", 0.1), ("run 2 start 5.3 GiB", 5.3), ("run 3 start 10.6 GiB", 10.6)))
    assert growth.between_runs(_samples(("run 1 start 5.3 GiB", 5.3), ("run 2 start 5.3 GiB", 5.3))) is None


def test_other_models_and_other_settings_are_no_later_runs() -> None:
    for name in ("model", "config"):
        assert growth.between_runs(_samples((f"{name} 7: memory allocated", 14.0), (f"{name} 13: memory allocated", 26.0))) is None
    assert growth.between_runs(_samples(("run 1: memory allocated", 14.0), ("run 2: memory allocated", 26.0)))
