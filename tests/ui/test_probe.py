"""The probe as a section of Diagnose and as a page: progress, cancel, result beside the estimate, and calm words where there is none."""

import threading
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor.arithmetic import estimate
from advisor.beside import same_moment
from advisor.job import read_job
from advisor.ledger import Ledger
from advisor.run import Run, resolve
from advisor.simulation import CannotProbe, Probed
from advisor.views import probes, probing
from advisor.views.beside import parts_beside, phases_beside, reasons

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"
JOB = """version: 1
model: {name: Qwen/Qwen2.5-0.5B}
method: {kind: full}
objective: sft
precision: {weights: bf16, compute: bf16}
optimizer: {name: adamw}
batch: {micro_batch: 2, seq_len: 1024}
activations: {checkpointing: full, attention: sdpa}
hardware: {gpu: rtx-3090}
"""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "find_spec", lambda name: object())
    probes.queue.clear()


def page(job: str = JOB) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/probe.py").run()
    at.text_area(key="probe_job").input(job)
    next(b for b in at.button if b.label == "Take it").click().run()
    assert not at.exception
    return at


def texts(at: AppTest) -> str:
    return "\n".join(str(e.value) for kind in ("markdown", "caption", "error", "warning", "success", "info") for e in getattr(at, kind))


def finished(at: AppTest) -> AppTest:
    for going in at.session_state.probes.values():
        for _ in range(200):
            if going.done:
                break
            time.sleep(0.05)
    return at.run()


def as_if_probed(run: Run) -> Probed:
    found = estimate(run)
    return Probed(Ledger("probed", found.holdings, found.moments, software={"torch": "2.13.0"}), {"default": found.peak().bytes}, 1234, 5.0)


def test_a_result_stands_beside_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "probe", lambda run, **_: as_if_probed(run))
    at = page()
    at.button(key="probe:go").click().run()
    at = finished(at)
    assert not at.exception
    assert "Allocated at the peak, probed" in [m.label for m in at.metric]
    assert "probed" in at.success[0].value + "".join(w.value for w in at.warning)
    assert "**Allocated together**" in texts(at)


def test_a_job_that_cannot_be_probed_is_said_calmly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Run, **_: object) -> Probed:
        raise CannotProbe("a model that is known by its config only has no code to run")

    monkeypatch.setattr(probes, "probe", refuse)
    at = page()
    at.button(key="probe:go").click().run()
    at = finished(at)
    assert not at.exception
    assert "no code to run" in at.warning[0].value
    at.button(key="probe:again").click().run()
    assert at.button(key="probe:go")


def test_a_running_probe_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def slow(run: Run, handle: probes.Handle, **_: object) -> Probed:
        handle.said.append("step 1 of 2")
        ended.wait(20)
        raise CannotProbe("ended with exit code -9")

    monkeypatch.setattr(probes, "probe", slow)
    monkeypatch.setattr(probes.Handle, "cancel", lambda self: ended.set())
    at = page()
    at.button(key="probe:go").click().run()
    assert not at.exception
    assert at.status
    at.button(key="probe:cancel").click().run()
    at = finished(at)
    assert not at.exception
    assert "cancelled" in texts(at)
    assert at.button(key="probe:go")


def test_a_page_that_is_loaded_anew_finds_its_probe_again(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def slow(run: Run, **_: object) -> Probed:
        let_go.wait(20)
        return as_if_probed(run)

    monkeypatch.setattr(probes, "probe", slow)
    first = page()
    first.button(key="probe:go").click().run()
    anew = page()  # another session, as after a reload
    assert anew.status and anew.button(key="probe:cancel")
    other = page(JOB.replace("micro_batch: 2", "micro_batch: 4"))
    assert other.button(key="probe:go") and not other.status
    let_go.set()
    assert "Allocated at the peak, probed" in [m.label for m in finished(anew).metric]
    assert "Allocated at the peak, probed" in [m.label for m in page().metric]
    anew.button(key="probe:again").click().run()
    assert page().button(key="probe:go")


def test_what_came_to_nothing_is_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Run, **_: object) -> Probed:
        raise CannotProbe("no room")

    monkeypatch.setattr(probes, "probe", refuse)
    at = page()
    at.button(key="probe:go").click().run()
    finished(at)
    assert page().button(key="probe:go")


def test_without_torch_the_page_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "find_spec", lambda name: None)
    at = page()
    assert "make probe" in texts(at)


def test_what_is_no_job_file_is_said_calmly() -> None:
    at = page("[" * 2000)
    assert "no job file" in at.warning[0].value
    at = page("model: 3")
    assert at.warning


def test_a_diagnosis_offers_the_probe() -> None:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.button(key="sample:3-dpo-zero2").click().run()
    assert not at.exception
    assert "Prove it" in [h.value for h in at.header]


def test_the_differences_add_up_and_are_explained() -> None:
    few = estimate(resolve(read_job({**_job(), "batch": {"micro_batch": 1, "seq_len": 1024}})))
    more = estimate(resolve(read_job(_job())))
    rows = parts_beside(more, few)
    ours, theirs = same_moment(more, few)
    assert ours.phase == theirs.phase == "loss"  # where the first has its peak, though the second has its own elsewhere
    assert few.peak().phase != "loss"
    assert sum(r.difference for r in rows) == theirs.bytes - ours.bytes < 0
    said = reasons(more, few)
    assert said and any("Logits" in text for text in said)
    assert reasons(more, more) == []
    phases = {r.name: (r.first, r.second) for r in phases_beside(more, few)}
    assert phases["loss"] == (ours.bytes, theirs.bytes) and "step" in phases


def _job() -> dict[str, object]:
    import yaml

    return dict(yaml.safe_load(JOB))
