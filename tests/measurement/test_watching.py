"""The pieces of the watcher: its pace, its tally, and which tensors it finds alive."""

import gc
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

from advisor.measurement.watching import living, pacing  # noqa: E402
from advisor.measurement.watching.tally import Tally  # noqa: E402


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


def test_new_tensors_are_found_without_a_look_at_every_object() -> None:
    look = living.Living()
    first = {id(t) for t in look.tensors()}
    gc.collect()  # as if a collection had come between: everything is looked at
    kept = [torch.zeros(3) for _ in range(5)]
    assert {id(t) for t in kept} <= {id(t) for t in look.tensors()}
    gc.disable()
    try:
        late = torch.ones(2, requires_grad=True)
        del kept[1:]
        found = look.tensors()
        assert {id(late), id(kept[0])} <= {id(t) for t in found}
        assert {id(t) for t in found} == {id(t) for t in living.Living().tensors()}
        assert len(found) == len({id(t) for t in found}) <= len(first) + 2
        assert sys.getrefcount(late) <= 4  # it keeps nothing alive: the name, the list above, the call
    finally:
        gc.enable()


def test_between_looks_that_come_soon_no_collection_hides_a_tensor() -> None:
    look = living.Living()
    look.tensors(soon=True)
    kept = torch.zeros(3)
    dead = torch.zeros(4)
    gc.collect()  # both are old now
    late = torch.ones(2)
    del dead
    gc.collect(1)
    found = {id(t) for t in look.tensors(soon=True)}
    assert {id(kept), id(late)} <= found
    assert found == {id(t) for t in living.Living().tensors()}
    for _ in range(living.MOST_HEARD + 1):
        gc.collect(1)
    assert gc.callbacks.count(look._collecting) == 0  # a step without end is not made slower
    last = torch.ones(5)
    gc.collect()
    assert id(last) in {id(t) for t in look.tensors()}
    assert gc.callbacks.count(look._collecting) == 0


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


@pytest.mark.parametrize("early", [True, False])
def test_gradients_that_a_loop_frees_after_its_forward_pass_are_not_counted_twice(early: bool) -> None:
    from advisor.measurement import watch

    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    with watch(model, optimizer) as seen:
        for _ in range(4):
            loss = model(torch.randn(2, 64)).square().mean()
            if early:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not early:
                optimizer.zero_grad()
    size = 4 * 64 * 64
    assert size <= seen.peaks["backward"][1]["gradients"] < 2 * size
    assert (seen.peaks["forward"][1].get("gradients", 0) == size) is early  # they are there while it runs forward


def test_the_watcher_itself_keeps_nothing_alive() -> None:
    import weakref

    from advisor.measurement import watch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    gone: list[weakref.ref[torch.Tensor]] = []
    gc.collect()
    gc.disable()  # what only a cycle holds would stay
    try:
        with watch(model, optimizer):
            for _ in range(6):
                output = model(torch.randn(256, 64))
                gone.append(weakref.ref(output))
                output.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert [ref() is None for ref in gone] == [True] * 5 + [False]
    finally:
        gc.enable()
