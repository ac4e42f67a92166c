"""Prove it: what is ticked is measured, the report and its link say so, another browser reads it from the link, and a wrong result is told."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from advisor.evidence import Evidence
from advisor.render.json import of_ledger
from advisor.render.measured import Figure
from advisor.run import Run
from advisor.share import Measured, link, measured_of, with_measured
from advisor.verdict import of_run
from advisor.views import measuring, measuring_here, proving
from advisor.views.probing import as_set

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "local_gpu", lambda: False)


@pytest.fixture(autouse=True)
def nothing_under_way() -> None:
    measuring_here.under_way.clear()


def diagnosis() -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.button(key="sample:3-dpo-zero2").click().run()
    at.session_state["prove"] = "Measure: on the card"
    at.run()
    assert not at.exception
    return at


def result(run: Run, **changes: Any) -> str:
    """As ``advisor validate --json`` prints it: here the estimate's own figures of the run, with what cannot be told apart as one part."""
    ledger, verdict, sentence = of_run(as_set(run))
    assert ledger is not None
    data = json.loads(json.dumps(of_ledger(as_set(run), ledger, verdict, sentence), default=str))
    for holding in data["peak"]["holdings"]:
        if holding["part"] not in (*measuring.OWNED, *measuring.OUTSIDE):
            holding["part"] = "unattributed"
    return json.dumps({**data, "kind": "measured", "outcome": "fits", "device": "NVIDIA A100-SXM4-40GB", "notes": [], **changes})


def ticked_run(at: AppTest) -> Run:
    from advisor.planner.together import apply_together

    report = at.session_state.report
    together = apply_together(report.run, [s.technique for s in report.plan.steps if s.estimated])
    assert together is not None
    return together.run


def parameters(at: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in at.query_params.items()}


def texts(at: AppTest) -> str:
    return "\n".join(str(e.value) for kind in ("markdown", "caption", "warning", "success") for e in getattr(at, kind))


def test_the_ticked_plan_is_measured_and_report_and_link_say_so() -> None:
    at = diagnosis()
    assert any("advisor validate job.yaml --json" in c.value for c in at.code)
    at.file_uploader(key="prove-file").upload("measured.json", result(ticked_run(at)).encode()).run()
    assert not at.exception
    said = texts(at)
    assert "**Measured** on NVIDIA A100" in said and "with the ticked changes" in said and "(+0.0%)" in said
    told = measured_of(parameters(at))
    assert told is not None and told.changed and told.device == "NVIDIA A100-SXM4-40GB"

    other = AppTest.from_file(str(APP), default_timeout=60)
    other.query_params |= parameters(at)
    other.run()
    assert "**Measured** on NVIDIA A100" in texts(other) and "what the link says" in texts(other)
    assert parameters(other)["measured"] == parameters(at)["measured"]

    box = next(box for box in other.checkbox if str(box.key).startswith("tick:"))
    box.uncheck().run()
    assert "**Measured** on" not in texts(other), "the link tells of the changes that it ticks"

    first = next(box for box in at.checkbox if str(box.key).startswith("tick:"))
    first.uncheck().run()
    assert "**Measured** on" not in texts(at) and "measured" not in at.query_params, "it was measured with other changes"


def test_a_result_of_another_run_is_not_taken_for_this_one() -> None:
    at = diagnosis()
    job = as_set(ticked_run(at)).job.but(batch={"micro_batch": 7}).to_dict()
    at.file_uploader(key="prove-file").upload("measured.json", result(ticked_run(at), job=json.loads(json.dumps(job, default=str))).encode()).run()
    assert any("another micro batch" in w.value for w in at.warning), [w.value for w in at.warning]
    assert "**Measured** on" not in texts(at)


@pytest.mark.parametrize("said", ["((((", "4", "0GiB,card,changed", "4GiB,card,maybe"])
def test_a_tampered_measurement_is_dropped_and_named(said: str) -> None:
    at = AppTest.from_file(str(APP), default_timeout=60)
    query = "v=1&model.name=Qwen/Qwen2.5-7B&batch.micro_batch=4&batch.seq_len=4096&hardware.gpu=a100-80gb"
    at.query_params |= {**dict(pair.split("=") for pair in query.split("&")), "measured": said}
    at.run()
    assert not at.exception
    assert any("measured" in w.value for w in at.warning) and "**Measured** on" not in texts(at)


def test_a_link_carries_device_names_of_any_form() -> None:
    from advisor.job import Job

    for device in ("NVIDIA H100, 80GB 'x'", "a:b(c)!", "x" * 500, ""):
        made = with_measured(link(Job(), Evidence()), Measured(123_456_789_012, device, False, ("torch 2.6.0+cu124", "odd, 'one'")))
        back = measured_of(made.query)
        assert back == measured_of(made.parameters)
        assert (
            back is not None
            and back.device == device[:80]
            and back.software == ("torch 2.6.0+cu124", "odd, 'one'")
            and abs(back.bytes - 123_456_789_012) < 2**30 / 100
        )


def test_a_local_gpu_measures_at_one_click(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    at = diagnosis()
    answer = tmp_path / "answer.json"
    answer.write_text(result(ticked_run(at)))
    code = f"import shutil, sys; print('measure: step 1', file=sys.stderr); shutil.copy({str(answer)!r}, sys.argv[1])"
    monkeypatch.setattr(measuring_here, "command", lambda job, out: [sys.executable, "-c", code, str(out)])
    monkeypatch.setattr(proving, "local_gpu", lambda: True)
    at.run()
    at.button(key="prove-here:go").click().run()
    going = at.session_state[measuring_here.KEPT] if measuring_here.KEPT in at.session_state else None  # noqa: SIM401  it has no get
    for _ in range(200):
        if going is None or going.done:
            break
        time.sleep(0.05)
    at.run()
    assert not at.exception
    assert "**Measured** on NVIDIA A100" in texts(at)


def test_a_measurement_that_ends_after_other_ticks_is_kept_for_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    at = diagnosis()
    answer = tmp_path / "answer.json"
    answer.write_text(result(ticked_run(at)))
    code = f"import shutil, sys, time; time.sleep(1); shutil.copy({str(answer)!r}, sys.argv[1])"
    monkeypatch.setattr(measuring_here, "command", lambda job, out: [sys.executable, "-c", code, str(out)])
    monkeypatch.setattr(proving, "local_gpu", lambda: True)
    at.run()
    at.button(key="prove-here:go").click().run()
    going = at.session_state[measuring_here.KEPT]
    first = next(box for box in at.checkbox if str(box.key).startswith("tick:"))
    first.uncheck().run()
    going.future.result(timeout=30)
    at.run()
    assert not at.exception
    assert "is measured" in texts(at) and not at.warning, [w.value for w in at.warning]
    assert "**Measured** on" not in texts(at), "the run with other ticks was not measured"
    first = next(box for box in at.checkbox if box.key == first.key)
    first.check().run()
    assert "**Measured** on NVIDIA A100" in texts(at)


def test_every_form_in_which_a_report_leaves_says_what_was_measured() -> None:
    from advisor.render import chat, html, markdown
    from advisor.render import json as as_json

    at = diagnosis()
    at.file_uploader(key="prove-file").upload("measured.json", result(ticked_run(at), software={"torch": "2.6.0"}).encode()).run()
    report, told = at.session_state.report, measured_of(parameters(at))
    assert told is not None and told.software == ("torch 2.6.0",)
    figure = Figure(told.bytes, told.device, told.changed, told.software, told.bytes, told=True)
    for said in (markdown.report(report, figure), html.report(report, figure), chat.report(report, figure)):
        assert "Measured on NVIDIA A100-SXM4-40GB (torch 2.6.0), with the ticked changes:" in said and "(+0.0%)" in said
    data = as_json.of_report(report, figure)["measured"]
    assert data["kind"] == "measured" and data["software"] == ["torch 2.6.0"] and data["max_allocated"] == told.bytes and data["from"] == "link"
    assert as_json.of_report(report)["measured"] is None and "Measured" not in markdown.report(report)
    assert "Measured on NVIDIA A100" in next(c.value for c in at.code if "Largest:" in c.value), "the lines for a chat on the page"


def test_a_page_that_is_loaded_anew_finds_its_measurement_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    at = diagnosis()
    answer = tmp_path / "answer.json"
    answer.write_text(result(ticked_run(at)))
    code = f"import shutil, sys, time; time.sleep(3); shutil.copy({str(answer)!r}, sys.argv[1])"
    monkeypatch.setattr(measuring_here, "command", lambda job, out: [sys.executable, "-c", code, str(out)])
    monkeypatch.setattr(proving, "local_gpu", lambda: True)
    at.run()
    at.button(key="prove-here:go").click().run()
    going = at.session_state[measuring_here.KEPT]
    anew = diagnosis()  # another session, as after a reload
    assert anew.session_state[measuring_here.KEPT] is going
    going.future.result(timeout=30)
    anew.run()
    assert not anew.exception
    assert "**Measured** on NVIDIA A100" in texts(anew)
    assert measuring_here.under_way() == []


def test_a_running_measurement_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    at = diagnosis()
    monkeypatch.setattr(measuring_here, "command", lambda job, out: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(proving, "local_gpu", lambda: True)
    at.run()
    at.button(key="prove-here:go").click().run()
    going = at.session_state[measuring_here.KEPT]
    for _ in range(100):
        if going.process is not None:
            break
        time.sleep(0.05)
    at.button(key="prove-here:cancel").click().run()
    said = texts(at)  # said once: in this run already, where the process has ended by then
    going.future.result(timeout=20)
    assert going.process.returncode not in (0, None)
    at.run()
    said += texts(at)
    assert "The measurement was cancelled" in said and "**Measured** on" not in said
