"""Measure and Events: what to run, a result beside the estimate, a log opened; what is no result or no log is said calmly."""

import io
import json
import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor.compare import of_job, of_json
from advisor.job import read_job
from advisor.measurement.eventlog import EventLog
from advisor.measurement.summing import MAX_STEPS, events_of, summed
from advisor.render.json import of_ledger
from advisor.run import resolve
from advisor.verdict import of_run
from advisor.views import events as events_view
from advisor.views import measuring

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"
JOB = {
    "version": 1, "model": {"name": "Qwen/Qwen2.5-0.5B"}, "method": {"kind": "full"}, "objective": "sft", "precision": {"weights": "bf16", "compute": "bf16"},
    "optimizer": {"name": "adamw"}, "batch": {"micro_batch": 2, "seq_len": 1024}, "activations": {"checkpointing": "full", "attention": "sdpa"},
    "hardware": {"gpu": "rtx-3090"},
}  # fmt: skip


def result() -> dict[str, object]:
    """As ``advisor validate --json`` prints it: here the estimate's own figures, with what a measurement can not tell apart as one part."""
    run = resolve(read_job(JOB))
    ledger, verdict, sentence = of_run(run)
    assert ledger is not None
    data = json.loads(json.dumps(of_ledger(run, ledger, verdict, sentence), default=str))
    for holding in data["peak"]["holdings"]:
        if holding["part"] not in (*measuring.OWNED, *measuring.OUTSIDE):
            holding["part"] = "unattributed"
    return {**data, "kind": "measured", "outcome": "fits", "device": "NVIDIA GeForce RTX 3090 <b>", "notes": ["a note with *stars*"]}


def page(name: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page(f"../../pages/{name}.py").run()
    assert not at.exception
    return at


def texts(at: AppTest) -> str:
    return "\n".join(str(e.value) for kind in ("markdown", "caption", "error", "warning", "success", "header", "subheader") for e in getattr(at, kind))


def test_what_to_run_stands_first_and_a_result_beside_the_estimate() -> None:
    at = page("measure")
    assert any("advisor validate job.yaml --json" in c.value for c in at.code)
    at.text_area(key="measured_text").input(json.dumps(result())).run()
    assert not at.exception
    said = texts(at)
    assert "Measured on NVIDIA GeForce RTX 3090" in said and "<b>" not in said
    assert "| At the peak | Estimated | Measured | Estimated, off by |" in said
    assert "+0.0" in said and "Largest moment of" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "no JSON"),
        ("[1]", "no result"),
        ('{"kind": "estimated"}', "not measured"),
        ('{"kind": "measured"}', "can not be read"),
        ('{"kind": "measured", "outcome": "ooms", "error": "**CUDA** out of memory"}', "ran out of memory"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_result_is_said_calmly(text: str, says: str) -> None:
    at = page("measure")
    at.text_area(key="measured_text").input(text).run()
    assert not at.exception
    assert says in at.warning[0].value and "**CUDA**" not in at.warning[0].value


def test_rows_add_up_on_every_side() -> None:
    sides = [of_job("estimate", read_job(JOB)), of_json("measured", result())]
    found = dict(measuring.rows(sides))
    together = found.pop("**Allocated together**")
    found.pop("Reserved by PyTorch", None)
    for side, total in enumerate(together):
        assert sum(values[side] or 0 for values in found.values()) == total


def log(tmp_path: Path) -> bytes:
    written = EventLog(tmp_path / "e.jsonl")
    written.write("start", version=1)
    for step in range(5):
        written.write("step", step=step, peaks={"forward": 1000 + step, "backward": 5000 + step}, parts={"weights": 4000, "activations": 1000 + step})
        written.write("attention", backend="math", where="model.py:7")
    where = {"where": "train.py:3", "step": 1}
    written.write("finding", "warning", cause="reference-copy", title="another model is resident: ref <script> holds *it*", bytes=9000, **where)
    written.write("finding", "note", cause="retained-objects", title="logits live on", where="train.py:9", bytes=70, step=2)
    written.write("out-of-memory", "warning", phase="backward", step=4)
    written.close()
    return (tmp_path / "e.jsonl").read_bytes()


def test_a_log_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    data = log(tmp_path) + b'{"kind": "st'
    monkeypatch.setattr("streamlit.file_uploader", lambda *_, **__: io.BytesIO(data))
    at.switch_page("../../pages/events.py").run()
    assert not at.exception
    said = texts(at)
    assert "1 fault found" in said and "killed" in said and "train.py:3" in said and "<script>" not in said
    assert "Memory ran out, in backward, step 4." in said.replace("\\", "")
    assert "1 line of the file" in said and "math at model.py:7" in said.replace("\\", "")


def test_no_log_is_said_calmly_and_how_to_watch_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("watch(model, optimizer" in c.value for c in page("events").code)
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    monkeypatch.setattr("streamlit.file_uploader", lambda *_, **__: io.BytesIO(b"\x00\xff not a log"))
    at.switch_page("../../pages/events.py").run()
    assert "no events" in at.warning[0].value
    assert "up to" in str(events_view.of_upload(b" " * (events_view.MAX_BYTES + 1))[1])


def test_a_log_of_any_length_and_any_content_is_bounded() -> None:
    lines = b"".join(b'{"kind": "step", "step": %d, "peaks": {"forward": %d}}\n' % (n, n) for n in range(3 * MAX_STEPS))
    broken: list[int] = []
    found = summed(events_of(lines, broken=broken), broken)
    assert found["steps"] == 3 * MAX_STEPS and MAX_STEPS / 3 <= len(found["course"]) <= MAX_STEPS + 1
    assert found["peaks"] == {"forward": 3 * MAX_STEPS - 1}
    odd = b'{"kind": "step", "peaks": {"a": true, "b": -1, "c": 99999999999999999999999}}\n{"kind": "finding"}\n[[[\n{"kind": 3}\nnull\n'
    broken = []
    found = summed(events_of(odd, broken=broken), broken)
    assert found["peaks"] == {} and found["warnings"] == [] and broken == [3, 4, 5]


def test_the_empty_page_of_events_has_an_example_that_names_its_line() -> None:
    at = page("events")
    at.button(key="events-example").click().run()
    assert not at.exception and "example" in at.query_params
    script = next(c.value for c in at.code if "watch(model" in c.value).splitlines()
    said = "\n".join(m.value for m in at.markdown)
    place = re.search(r"keeps-its-losses\.py:(\d+)", said.replace("\\", ""))
    assert place is not None and "losses.append" in script[int(place.group(1)) - 1]
    assert "keeps the autograd graph" in said
    at.button(key="events-close").click().run()
    assert not at.exception and at.button(key="events-example")
