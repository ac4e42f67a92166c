"""The pieces of the watcher: its pace, its tally, and which tensors it finds alive."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

from advisor.measurement.watching import growth, pacing  # noqa: E402
from advisor.measurement.watching.holders import Holder, holders  # noqa: E402
from advisor.measurement.watching.tally import Tally  # noqa: E402

Ask = Callable[[str], dict[str, Any]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def overhead(monkeypatch: pytest.MonkeyPatch, *, full: bool, factor: float, looking: float, steps: int) -> tuple[float, int]:
    """Share of time that watching adds to steps of one second, and the steps observed."""
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    pace, observed = pacing.Pace(full), 0
    for step in range(steps):
        seen = pace.observe(step)
        if seen and pace.look(step):
            clock.now += looking
            pace.looked += looking
        seconds = factor if seen else 1.0
        clock.now += seconds
        pace.over(seconds, observed=seen)
        observed += seen
    return (clock.now - 100.0) / steps - 1, observed


@pytest.mark.parametrize("factor", [1.02, 1.25, 2.0, 4.0])
@pytest.mark.parametrize("looking", [0.0, 0.2])
@pytest.mark.parametrize(("full", "most"), [(False, 0.03), (True, 0.30)])
def test_watching_stays_within_its_share_whatever_a_step_costs(monkeypatch: pytest.MonkeyPatch, factor: float, looking: float, full: bool, most: float) -> None:
    added, observed = overhead(monkeypatch, full=full, factor=factor, looking=looking, steps=1500)
    assert added <= most
    assert observed >= pacing.FIRST
    if full and factor <= 1.2:
        assert observed >= 1500 * (1 - 1 / pacing.EVERY) - pacing.PLAIN - 1  # where it costs little, nearly every step is observed


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.sampled_from(["forward", "backward", "step"])), max_size=40))
def test_peaks_are_those_of_adding_up(events: list[tuple[bool, int, str]]) -> None:
    tally, alive, most = Tally({1: ("weights", 7)}), {1: ("weights", 7)}, {"forward": 7}
    for number, (die, size, phase) in enumerate(events, 2):
        if die and len(alive) > 1:
            key = max(alive)
            del alive[key]
            tally.gone(key)
        else:
            part = "logits" if size > 6 else "activations"
            alive[number] = (part, size)
            tally.born(number, part, size, phase)
            most[phase] = max(most.get(phase, 0), sum(s for _, s in alive.values()))
    peaks = tally.peaks()
    assert {phase: size for phase, (size, _) in peaks.items()} == most
    assert all(sum(parts.values()) == size for size, parts in peaks.values())


def test_gradients_are_told_from_activations_once_they_are_known() -> None:
    tally = Tally({1: ("weights", 100)})
    tally.born(2, "activations", 50, "backward")
    tally.born(3, "activations", 10, "backward")  # the peak: 160
    tally.gone(3)
    tally.born(4, "activations", 5, "backward")  # a gradient too, but after the peak
    tally.gradients([2, 4])
    assert tally.peaks()["backward"] == (160, {"weights": 100, "gradients": 50, "activations": 10})
    assert tally.parts["gradients"] == 55


@pytest.mark.parametrize(
    "name",
    [
        "new_tensors_are_found_without_a_look_at_every_object",
        "between_looks_that_come_soon_no_collection_hides_a_tensor",
        "gradients_freed_early_are_not_counted_twice",
        "gradients_freed_late_are_not_counted_twice",
        "the_watcher_itself_keeps_nothing_alive",
        "what_fsdp_gathers_and_reduces_is_told_apart",
        "ddps_buckets_are_told_apart",
        "kernels_that_libraries_register_are_seen",
    ],
)
def test_alone(ask: Ask, name: str) -> None:
    answer = ask(f"alone.{name}")
    assert "raised" not in answer, answer["raised"]


def test_a_kernels_threads_do_not_name_what_this_threads_names_hold() -> None:
    kept, ready, done = [torch.zeros(4)], threading.Event(), threading.Event()

    def serve(state: list[torch.Tensor]) -> None:
        ready.set()
        done.wait(60)
        del state

    thread = threading.Thread(target=serve, args=(kept,))
    thread.start()
    ready.wait(60)
    found = holders({id(kept[0])}, ())
    done.set()
    thread.join(60)
    assert found[id(kept[0])].name == "kept"


def test_two_names_that_share_a_graph_each_have_all_of_it_whichever_is_met_first() -> None:
    loss = torch.ones(2, requires_grad=True).square().sum()
    total = loss + torch.ones(1, requires_grad=True).sum()
    held = {id(loss): Holder("loss", "a.py:1", "Tensor"), id(total): Holder("total", "a.py:2", "Tensor")}
    scans = [growth.scan(strangers, held, {}) for strangers in ([loss, total], [total, loss])]
    assert scans[0] == scans[1]
    assert {holder.name: group.nodes for holder, group in scans[0].items()} == {"loss": 3, "total": 6}
