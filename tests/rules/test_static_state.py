"""A state that is larger than the card is not cured by a smaller batch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.evidence import Evidence
from advisor.job import read_job
from advisor.reading import read
from advisor.rules import engine, static_state
from advisor.rules.samples import job, oom, trace
from advisor.run import Run, resolve

BACKWARD = trace("torch/autograd/graph.py|_engine_run_backward")


def _read(text: str, **sections: str) -> tuple[Run, Evidence]:
    reading = read([("error.txt", text)])
    evidence = replace(reading.evidence)
    return resolve(read_job(job(**sections)), evidence), evidence


FULL = {"method": "{kind: full}", "precision": "{weights: fp32, compute: bf16}", "activations": "{checkpointing: none}", "parallel": "{strategy: none}"}


def test_it_is_told_without_a_length() -> None:
    run, evidence = _read(BACKWARD + oom("112.00 MiB", allocated=78.0), **FULL)
    assert run.job.batch.seq_len is None
    assert static_state.exceeds(run, evidence)
    marks = {s.mark for f in engine.judge(run, evidence).findings for s in f.evidence}
    assert "optimizer-state-state-exceeds" in marks
    findings = [f.cause for f in engine.judge(run, evidence).findings]
    assert findings[0] in ("optimizer-state", "capacity", "default-fp32-load")


def test_not_after_steps_that_went_through() -> None:
    run, evidence = _read("step: 40 loss: 1.9\n" + BACKWARD + oom("112.00 MiB", allocated=78.0), **FULL)
    assert static_state.exceeds(run, evidence) is None


def test_weights_that_could_not_have_been_loaded_are_not_the_state_that_was_there() -> None:
    run, evidence = _read(BACKWARD + oom("112.00 MiB", allocated=23.0, capacity=23.6), **FULL)
    state = static_state.state_of(run, evidence)
    assert state is not None and state.parts["weights"] > 23.6 * 2**30
    assert static_state.exceeds(run, evidence) is None


def test_adapters_on_a_small_base_leave_room() -> None:
    run, evidence = _read(BACKWARD + oom("112.00 MiB", allocated=78.0), method="{kind: lora}", precision="{weights: bf16}")
    assert static_state.exceeds(run, evidence) is None and static_state.may_exceed(run, evidence) is None


@pytest.mark.parametrize(("states", "each"), [("fp32", 16)])
def test_a_model_of_unknown_shape_is_judged_by_its_size(states: str, each: int) -> None:
    text = "version: 1\nmodel: {name: someone/new-7B}\nmethod: {kind: full}\nprecision: {weights: fp32}\n" + f"optimizer: {{name: adamw, states: {states}}}\n"
    run = resolve(read_job(text))
    state = static_state.state_of(run, Evidence())
    assert run.architecture is None and state is not None and state.bytes == pytest.approx(7e9 * each, rel=0.01)
