"""Compare, baseline and budget: what has changed is named, what has not is quiet, and CI can read it."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from advisor import baseline, compare
from advisor.cli import main
from advisor.job import meant_as_job, read_job

JOB = {
    "version": 1,
    "model": {"name": "meta-llama/Llama-3.1-8B"},
    "method": {"kind": "lora", "rank": 16},
    "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none", "master": "none", "gradients": "bf16"},
    "optimizer": {"name": "adamw", "states": "fp32"},
    "batch": {"micro_batch": 2, "seq_len": 4096, "gradient_accumulation": 1},
    "activations": {"checkpointing": "full", "attention": "flash-2", "loss": "full-fp32"},
    "parallel": {"strategy": "none"},
    "hardware": {"gpu": "a100-80gb"},
    "framework": {"name": "custom"},
}


def job(**changes: dict[str, object]) -> dict[str, object]:
    return read_job(JOB).but(**changes).to_dict()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    assert main(["baseline", "save", "job.json", "--to", "b.yaml"]) == 0
    return tmp_path


def test_nothing_changed_is_no_drift(folder: Path) -> None:
    assert main(["baseline", "check", "b.yaml", "job.json"]) == 2  # not approved yet
    assert main(["baseline", "approve", "b.yaml"]) == 0
    assert main(["baseline", "check", "b.yaml", "job.json"]) == 0


@pytest.mark.parametrize(
    ("changes", "checks"),
    [
        ({"precision": {"weights": "fp32"}}, {"dtypes", "peak"}),
        ({"activations": {"attention": "eager"}}, {"kernels"}),
        ({"activations": {"checkpointing": "none"}}, {"kernels", "peak"}),
        ({"batch": {"micro_batch": 4}}, {"peak"}),
        ({"batch": {"micro_batch": 1}}, set()),
        ({"reference": "copy", "objective": "dpo"}, {"peak"}),
    ],
)
def test_each_drift_is_named(folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], checks: set[str]) -> None:
    main(["baseline", "approve", "b.yaml"])
    (folder / "now.json").write_text(json.dumps(job(**changes)))  # type: ignore[arg-type]
    code = main(["baseline", "check", "b.yaml", "now.json", "--junit", "out.xml"])
    tree = ElementTree.parse(folder / "out.xml").getroot()
    failed = {case.get("name") for case in tree if case.find("failure") is not None}
    assert checks <= failed, capsys.readouterr().out
    assert bool(failed) == bool(checks)
    assert code == (1 if checks else 0)
    assert tree.get("failures") == str(len(failed))


def test_an_estimate_is_not_held_against_a_measurement() -> None:
    side = compare.of_job("a", read_job(JOB))
    other = replace(side, kind="measured")
    with pytest.raises(compare.CompareError, match="like with like"):
        baseline.drift(side, other)


def test_budget(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "job.json", "--budget", "79GiB"]) == 0
    assert "  " not in capsys.readouterr().out
    assert main(["check", "job.json", "--budget", "8GiB"]) == 1
    over = capsys.readouterr().out
    assert "  " not in over and "within 8GiB: " in over
    assert main(["check", "job.json", "--budget", "8GiB", "--github"]) == 1
    assert "::error file=job.json,title=memory budget::" in capsys.readouterr().out
    assert main(["check", "job.json", "--budget", "lots"]) == 2


def test_compare_says_what_moved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "now.json").write_text(json.dumps(job(batch={"micro_batch": 4})))
    capsys.readouterr()
    assert main(["compare", "job.json", "now.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == [["batch.micro_batch", 2, 4]]
    moved = {row["name"]: row["b"] - row["a"] for row in found["totals"]}
    assert moved["max_allocated"] == found["b"]["totals"]["max_allocated"] - found["a"]["totals"]["max_allocated"] > 0
    assert main(["compare", "job.json", "now.json", "--markdown"]) == 0
    assert "| batch.micro_batch | `2` | `4` |" in capsys.readouterr().out


def test_a_ledger_and_its_job_and_its_baseline_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "advisor.cli", "estimate", "job.json", "--json"], capture_output=True, text=True, timeout=60)
    (folder / "ledger.json").write_text(done.stdout)
    for other in ("ledger.json", "b.yaml"):
        capsys.readouterr()
        assert main(["compare", "job.json", other, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert all(row["a"] == row["b"] for row in (*found["parts"], *found["totals"], *found["phases"]))


def test_what_is_no_job_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.json").write_text('{"hello": 1}')
    assert main(["compare", "job.json", "x.json"]) == 2
    assert "is neither a job file" in capsys.readouterr().err
    assert main(["compare", "job.json", "missing.json"]) == 2


@pytest.mark.parametrize("version", [{"version": 1}, {}])
def test_a_job_with_a_wrong_value_is_refused_as_the_estimate_does(version: dict[str, int], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {name: value for name, value in JOB.items() if name != "version"} | {"activations": {"attention": "flash"}} | version
    (folder / "wrong.json").write_text(json.dumps(wrong))
    for command in (["compare", "job.json", "wrong.json"], ["baseline", "save", "wrong.json", "--to", "w.yaml"], ["baseline", "check", "b.yaml", "wrong.json"]):
        assert main(["baseline", "approve", "b.yaml"]) == 0
        capsys.readouterr()
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert "wrong.json" in said and "activations.attention" in said and "flash-2" in said
    assert not (folder / "w.yaml").exists()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("version: 1\nbatch: {micro: 1}\n", True),  # a wrong name
        ("batch: {micro_batch: many}\n", True),  # a wrong value
        ("base_model: a/b\nmicro_batch_size: 2\n", False),
        ("model: {_component_: torchtune.models.llama3.llama3_8b}\noptimizer: {_component_: torch.optim.AdamW}\nbatch_size: 2\n", False),
        ("version: 1\nservices: {trainer: {image: x}}\n", False),
        ("[1, 2]", False),
        ("a: [", False),
    ],
)
def test_which_text_was_meant_as_a_job_file(text: str, meant: bool) -> None:
    assert meant_as_job(text) is meant


def test_configs_of_frameworks_are_sides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: {0}\nadapter: lora\nlora_r: 16\noptimizer: adamw_torch\nbf16: true\n"
    (folder / "a.yaml").write_text(config.format(1))
    (folder / "b.yaml").write_text(config.format(4))
    capsys.readouterr()
    assert main(["compare", "a.yaml", "b.yaml", "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "| batch.micro_batch | `1` | `4` |" in said and "| activations |" in said
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text(config.format(4))
    capsys.readouterr()
    assert main(["compare", "b.yaml", "run", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["a"]["totals"] == both["b"]["totals"] and both["settings"] == []


def test_snapshots_are_compared_place_by_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.reading.snapshot.building import Recorded, dumped, frame, snapshot

    def taken(name: str, kept: int) -> None:
        recorded = Recorded()
        segment = recorded.segment(64 << 20)
        recorded.alloc(segment, 8 << 20, [frame("train.py", "load", 12)])
        if kept:
            recorded.alloc(segment, kept, [frame("train.py", "keep", 40)])
        (folder / name).write_bytes(dumped(snapshot(recorded)))

    taken("before.pickle", 0)
    taken("after.pickle", 16 << 20)
    capsys.readouterr()
    assert main(["compare", "before.pickle", "after.pickle", "--markdown"]) == 0
    said = capsys.readouterr().out
    assert "8 MiB → 24 MiB (+16 MiB, +200.0 %)" in said
    assert "| Place | before | after | difference |" in said and "train.py:keep" in said and "train.py:load" not in said
    assert main(["baseline", "save", "before.pickle", "--to", "s.yaml"]) == 0
    assert main(["baseline", "approve", "s.yaml"]) == 0
    assert main(["baseline", "check", "s.yaml", "before.pickle"]) == 0
    assert main(["baseline", "check", "s.yaml", "after.pickle"]) == 1
    (folder / "bad.pickle").write_bytes(b"\x80\x04not a pickle")
    assert main(["compare", "before.pickle", "bad.pickle"]) == 2


def test_a_watched_run_is_a_side_and_a_copy_that_appears_in_it_is_drift(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def log(name: str, backward: int, copied: bool) -> None:
        lines: list[dict[str, object]] = [
            {"kind": "start", "level": "note", "torch": "2.13.0"},
            {
                "kind": "step",
                "step": 1,
                "peaks": {"forward": 5_000_000, "backward": backward},
                "parts": {"weights": 4_000_000, "activations": backward - 4_000_000},
            },
        ]
        if copied:
            lines.append({"kind": "finding", "level": "warning", "cause": "reference-copy", "title": "another model", "where": "a.py:3", "bytes": 4_000_000})
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    log("before.jsonl", 8_000_000, False)
    log("after.jsonl", 12_000_000, True)
    assert main(["compare", "before.jsonl", "after.jsonl", "--markdown"]) == 0
    assert "| activations | 4 MiB | 8 MiB | +4 MiB |" in capsys.readouterr().out
    assert main(["baseline", "save", "before.jsonl", "--to", "w.yaml"]) == 0
    assert main(["baseline", "approve", "w.yaml"]) == 0
    assert main(["baseline", "check", "w.yaml", "before.jsonl"]) == 0
    capsys.readouterr()
    assert main(["baseline", "check", "w.yaml", "after.jsonl"]) == 1
    said = capsys.readouterr().out
    assert "a copy appeared: reference-copy at a.py:3" in said and "the peak grew" in said
    broken = (folder / "after.jsonl").read_text().replace('"bytes": 4000000', '"bytes": "4 MB"')
    (folder / "after.jsonl").write_text(broken)  # a log is a text like any other: what is no figure is not read as one
    assert main(["compare", "before.jsonl", "after.jsonl"]) == 0


def test_settings_dtypes_kernels_and_versions_of_a_watched_run_drift(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def log(
        name: str, *, kernel: str = "flash", line: int = 12, weights: str = "bf16", driver: str = "570.124.06", checkpointing: str = "full", norm: str = "a.py"
    ) -> str:  # fmt: skip
        lines: list[dict[str, object]] = [
            {"kind": "start", "torch": "2.13.0"},
            {"kind": "attention", "backend": kernel, "where": f"model.py:{line}"},
            {"kind": "software", "versions": {"torch": "2.13.0", "driver": driver}},
            {"kind": "job", "job": {"version": 1, "activations": {"checkpointing": checkpointing}, "framework": {"name": "custom"}}},
            {"kind": "step", "step": 1, "peaks": {"forward": 5_000_000}, "parts": {"weights": 5_000_000}, "resident": {"weights": {weights: 5_000_000}}},
            {"kind": "finding", "level": "warning", "cause": "framework-upcast", "title": "widened", "where": f"{norm}:{line}", "bytes": 1 << 20},
            {"kind": "end"},
        ]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return name

    assert main(["baseline", "save", log("a.jsonl"), "--to", "a.yaml"]) == 0
    assert main(["baseline", "approve", "a.yaml"]) == 0
    assert main(["baseline", "check", "a.yaml", log("same.jsonl", line=40)]) == 0  # an edit that moves a line is no drift
    for changes, says in (
        ({"kernel": "math"}, "the attention in model.py changed: flash to math"),
        ({"norm": "b.py"}, "a tensor is widened at b.py:12 (1 MiB a step), in a file that widened none"),
        ({"weights": "fp32"}, "weights widened: bf16 5 MiB to fp32 5 MiB"),
        ({"driver": "580.65.06"}, "driver changed: 570.124.06 to 580.65.06"),
        ({"checkpointing": "none"}, "activations.checkpointing changed: full to none"),
    ):
        capsys.readouterr()
        assert main(["baseline", "check", "a.yaml", log("b.jsonl", **changes)]) == 1
        said = capsys.readouterr().out
        assert said.count("DRIFT") == 1 and says in said
    assert main(["compare", "a.jsonl", log("b.jsonl", kernel="math"), "--markdown"]) == 0
    assert "- attention in model.py: flash → math" in capsys.readouterr().out


def test_a_measurements_driver_is_held_against_it_and_its_heads_are_its_kinds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "advisor.cli", "estimate", "job.json", "--json"], capture_output=True, text=True, timeout=60)
    measured = {**json.loads(done.stdout), "kind": "measured", "driver": "570.124.06", "cuda": "12.8"}
    (folder / "m.json").write_text(json.dumps(measured))
    (folder / "n.json").write_text(json.dumps({**measured, "driver": "580.65.06"}))
    assert [main(["baseline", *rest]) for rest in (["save", "m.json", "--to", "m.yaml"], ["approve", "m.yaml"], ["check", "m.yaml", "m.json"])] == [0, 0, 0]
    capsys.readouterr()
    assert main(["baseline", "check", "m.yaml", "n.json"]) == 1
    assert "driver changed: 570.124.06 to 580.65.06" in capsys.readouterr().out
    (folder / "p.json").write_text(json.dumps({**measured, "peak": {**measured["peak"], "holdings": measured["peak"]["holdings"][1:]}}))
    assert main(["compare", "job.json", "p.json", "--markdown"]) == 0
    assert "| Part at the peak | estimated | measured | difference |" in capsys.readouterr().out
