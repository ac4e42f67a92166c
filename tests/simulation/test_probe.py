"""The probe as a whole: child process, ledger, timeline, snapshot, command line, limits."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.conftest import CONFIGS

pytestmark = [pytest.mark.torch]


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """JSON, timeline and snapshot of one probe of a tiny model, by the command line."""
    folder = tmp_path_factory.mktemp("probe")
    job = {
        "version": 1, "model": {"config": CONFIGS["llama"]}, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"},
        "method": {"kind": "full"}, "optimizer": {"name": "adamw", "implementation": "foreach"}, "batch": {"micro_batch": 2, "seq_len": 64},
        "activations": {"checkpointing": "none", "attention": "sdpa"}, "hardware": {"gpu": "a100-80gb"}, "framework": {"name": "custom"},
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    command = ["probe", str(folder / "job.json"), "--json", "--timeline", str(folder / "t.json"), "--snapshot", str(folder / "s.pickle")]
    done = subprocess.run([sys.executable, "-m", "advisor.cli", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "probe: step 2 of 2" in done.stderr
    return json.loads(done.stdout), json.loads((folder / "t.json").read_text()), pickle.loads((folder / "s.pickle").read_bytes())


def test_the_parts_at_the_peak_add_up(answer: Any) -> None:
    ledger, _, _ = answer
    outside = ("allocator", "context")
    held = sum(h["bytes"] for h in ledger["peak"]["holdings"] if h["part"] not in outside)
    cache = sum(h["bytes"] for h in ledger["peak"]["holdings"] if h["part"] == "allocator")
    assert ledger["kind"] == "probed"
    assert held == ledger["totals"]["max_allocated"]["expected"] == max(ledger["phases"].values())
    assert held + cache == ledger["totals"]["max_reserved"]["expected"]
    assert ledger["verdict"] == "fits"


def test_the_timeline_is_the_same_story(answer: Any) -> None:
    ledger, timeline, _ = answer
    storages = {s["id"]: s for s in timeline["storages"]}
    assert sum(storages[i]["bytes"] for i in timeline["peak"]["alive"]) == timeline["peak"]["bytes"] == ledger["totals"]["max_allocated"]["expected"]
    assert max(timeline["allocated"]) == timeline["peak"]["bytes"]
    assert timeline["allocated"][-1] == sum(s["bytes"] for s in timeline["storages"] if s["died"] is None)
    assert any("modeling_llama.py" in s["site"] for s in timeline["storages"])
    assert any(s["operator"] == "aten::mm" and s["module"].endswith("q_proj") for s in timeline["storages"])


def test_torchs_own_viewer_reads_the_snapshot(answer: Any) -> None:
    from torch.cuda import _memory_viz

    ledger, _, snapshot = answer
    assert sum(s["total_size"] for s in snapshot["segments"]) == ledger["totals"]["max_reserved"]["expected"]
    for segment in snapshot["segments"]:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    text = _memory_viz.segsum(snapshot)
    assert "segments:" in text
    assert "cudaMalloc(" in _memory_viz.trace(snapshot)
    resting = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert any("q_proj.weight" in frame["name"] for b in resting for frame in b["frames"])
    assert ledger["peak"]["bytes"] > sum(b["size"] for b in resting) > 3 * 2 * 98_000  # weights and two moments, bf16, of 98 k parameters
    assert "<html" in _memory_viz.trace_plot(snapshot).lower() or "<!doctype" in _memory_viz.trace_plot(snapshot).lower()
    actions = {e["action"] for e in snapshot["device_traces"][0]}
    assert actions == {"alloc", "free_requested", "free_completed", "segment_alloc"}


def test_it_is_laid_beside_the_estimate(answer: Any) -> None:
    ledger, _, _ = answer
    beside = ledger["estimate"]
    assert beside["parts"]["weights"]["probed"] == pytest.approx(beside["parts"]["weights"]["estimated"], rel=0.02)
    assert all(row["difference"] == row["estimated"] - row["probed"] for row in beside["parts"].values())


def test_what_can_not_be_probed_says_why_and_is_incomplete(tmp_path: Path) -> None:
    job = {"version": 1, "model": {"config": {**CONFIGS["llama"], "model_type": "no_such_model"}}, "batch": {"micro_batch": 1, "seq_len": 8}}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = subprocess.run([sys.executable, "-m", "advisor.cli", "probe", str(tmp_path / "job.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no_such_model" in done.stderr


def test_a_probe_that_takes_too_long_is_ended(tiny: Any) -> None:
    from advisor.simulation import CannotProbe, probe

    with pytest.raises(CannotProbe, match="longer than 1 s"):
        probe(tiny("llama"), timeout=1)


def test_a_probe_can_be_cancelled(tiny: Any) -> None:
    from advisor.simulation import CannotProbe, probe
    from advisor.simulation.probing import Handle

    handle = Handle()
    with pytest.raises(CannotProbe, match="ended"):
        probe(tiny("llama"), handle=handle, say=lambda _: handle.cancel())
    assert handle.process is not None
    assert handle.process.poll() is not None
