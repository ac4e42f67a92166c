"""Answers that are kept, moments that are named, and what is compared with what."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.beside import at_moment, moments_beside, parts_beside, same_moment
from advisor.ledger import Holding, Ledger, Moment
from advisor.simulation import remembering, sessions
from advisor.simulation.request import CannotProbe, request


def _ledger(kind: Any, sizes: dict[str, dict[str, int]]) -> Ledger:
    holdings = tuple(Holding(part, part, size, frozenset({moment}), "", {}, "") for moment, parts in sizes.items() for part, size in parts.items())
    return Ledger(kind, holdings, tuple(Moment(name, name.partition(".")[0]) for name in sizes))


PROBED = _ledger("probed", {"loss.backward": {"logits": 50, "weights": 10}, "step.update": {"weights": 10, "optimizer": 70}})
ESTIMATED = _ledger("estimated", {"loss.backward": {"logits": 90, "weights": 10}, "step.update": {"weights": 11, "optimizer": 70}})


def test_two_ledgers_are_compared_at_the_first_ones_moment_not_at_the_seconds_own_peak() -> None:
    ours, theirs = same_moment(PROBED, ESTIMATED)
    assert ESTIMATED.peak().moment.id == "loss.backward"
    assert (ours.moment.id, theirs.moment.id, ours.bytes, theirs.bytes) == ("step.update", "step.update", 80, 81)
    parts = parts_beside(PROBED, ESTIMATED, "step.update")
    assert parts == {"weights": (10, 11), "optimizer": (70, 70)}
    assert sum(b - a for a, b in parts.values()) == theirs.bytes - ours.bytes
    assert moments_beside(PROBED, ESTIMATED) == {"loss.backward": (60, 100), "step.update": (80, 81)}


def test_a_moment_that_the_second_lacks_is_looked_for_in_its_phase() -> None:
    coarse = _ledger("measured", {"step": {"optimizer": 82}, "forward": {"weights": 10}})
    assert same_moment(PROBED, coarse)[1].bytes == 82
    assert at_moment(coarse, "loss.backward") is None


def test_an_answer_is_kept_under_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ADVISOR_PROBE_CACHE", raising=False)
    asked = {"job": {"batch": {"micro_batch": 1}}}
    name = remembering.key(asked, None)
    assert remembering.recall(name) is None
    remembering.keep(name, {"ledger": {}, "events": 3})
    assert remembering.recall(name) == {"ledger": {}, "events": 3}
    assert remembering.key({"job": {"batch": {"micro_batch": 2}}}, None) != name
    assert remembering.key(asked, Path("transformers-4.48.1")) != name
    monkeypatch.setattr(remembering, "_code", lambda: "other code")
    assert remembering.key(asked, None) != name


def test_a_kept_answer_that_is_none_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = remembering.folder()
    assert folder is not None
    folder.mkdir(parents=True)
    for text in ("{", "[]", json.dumps({"error": "no"})):
        (folder / "a.json").write_text(text)
        assert remembering.recall("a") is None
    monkeypatch.setenv("ADVISOR_PROBE_CACHE", "off")
    assert remembering.folder() is None


def test_a_cache_setting_that_nobody_stated_is_left_to_the_library(tiny: Any) -> None:
    assert "use_cache" not in request(tiny("llama"))["job"]["framework"]
    assert request(tiny("llama", framework={"use_cache": True}))["job"]["framework"]["use_cache"] is True


@pytest.mark.torch
def test_blocks_are_those_of_the_largest_stack_and_wrappers_have_no_name() -> None:
    import torch

    from advisor.simulation import placing

    model = torch.nn.ModuleDict(
        {"vision": torch.nn.ModuleList([torch.nn.Linear(2, 2)] * 3), "text": torch.nn.ModuleList(torch.nn.Linear(9, 9) for _ in range(2))}
    )
    assert placing.blocks(model) == ["text.0", "text.1"]
    assert placing.plain("module._fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module.mlp") == "model.layers.0.mlp"


@pytest.mark.torch
def test_the_recorder_marks_the_estimates_moments_in_their_order(tiny: Any) -> None:
    from advisor.arithmetic.moments import MOMENTS
    from advisor.simulation.step import STEPS, record

    seen = [name for _, name, step in record(tiny("llama"), attention="math").moments if step == STEPS - 1]
    order = ["forward.blocks", "loss.forward", "loss.backward", "backward.last-block", "backward.first-block", "backward.root", "step.update"]
    assert list(dict.fromkeys(seen)) == order
    assert set(order) <= MOMENTS.keys()


@pytest.mark.torch
def test_storages_that_are_resized_die_and_are_born_on_the_stream_that_asks() -> None:
    import torch

    from advisor.simulation.recorder import Recorder

    recorder = Recorder()
    with recorder:
        value = torch.empty(100, device="meta")
        value.untyped_storage().resize_(0)
        recorder.stream = lambda: 3
        value.untyped_storage().resize_(400)
        del value
    assert [(e.free, recorder.storages[e.id].requested, recorder.storages[e.id].stream) for e in recorder.events] == [
        (False, 400, 0), (True, 400, 0), (False, 400, 3), (True, 400, 3),
    ]  # fmt: skip


@pytest.mark.torch
def test_what_several_ranks_can_not_do_is_refused_by_name(tiny: Any) -> None:
    from advisor.simulation import scope
    from advisor.simulation.request import CannotProbe

    for fields, name in (({"strategy": "zero3", "shard": 2, "tensor": 2}, "tensor"), ({"strategy": "fsdp1", "shard": 2, "tensor": 2}, "tensor")):
        with pytest.raises(CannotProbe, match=name):
            scope.check(tiny("llama", parallel={"replicate": 1, **fields}, hardware={"gpus_per_node": 4}))


def test_what_is_no_answer_ends_the_process_and_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remembering, "recall", lambda _: None)
    monkeypatch.setattr(sessions, "command", lambda *_, **__: [sys.executable, "-c", "print('libfoo: warning', flush=True); input()"])
    with sessions.Session() as session, pytest.raises(CannotProbe, match="libfoo: warning"):
        session.ask({"job": {}}, None, timeout=5)
    assert not session._processes
