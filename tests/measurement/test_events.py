"""The log: bounded, whole after a kill, summarised by the command; policies; the callback."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from advisor.measurement import summing
from advisor.measurement.eventlog import EventLog, read


def test_rotation_is_bounded_and_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl", max_bytes=2000, files=3)
    for number in range(400):
        log.write("step", step=number)
    log.close()
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 3 * 2000
    steps = [event["step"] for event in read(tmp_path / "e.jsonl")]
    assert steps == list(range(400 - len(steps), 400))


def test_a_kill_leaves_a_readable_log(tmp_path: Path) -> None:
    code = (
        "import sys, itertools\nfrom advisor.measurement.eventlog import EventLog\nlog = EventLog(sys.argv[1])\n"
        "for n in itertools.count():\n    log.write('step', step=n, filler='x' * 500)\n    if n == 300: print('now', flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "e.jsonl")], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"now\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait(20)
    child.stdout.close()
    broken: list[int] = []
    steps = [event["step"] for event in read(tmp_path / "e.jsonl", broken=broken)]
    assert steps[:301] == list(range(301))
    assert len(broken) <= 1


def test_a_line_that_was_cut_is_counted(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl")
    log.write("start")
    log.close()
    with (tmp_path / "e.jsonl").open("a") as handle:
        handle.write('{"kind": "st')
    broken: list[int] = []
    assert [e["kind"] for e in read(tmp_path / "e.jsonl", broken=broken)] == ["start"]
    assert broken == [2]


def test_which_checkpoints_were_compared_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from advisor.cli import main

    log = EventLog(tmp_path / "e.jsonl")
    log.write("start")
    for exact, differ in ((True, 0), (False, 0), (False, 3)):
        log.write("checkpoint-compared", block="layers.0", gradients=7, differ=differ, exact=exact, bytes=3 * 2**20)
    log.write("checkpoint-not-compared", block="layers.1", why="FSDP divides its parameters")
    log.close()
    assert main(["events", str(tmp_path / "e.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "3 times, 1 with other gradients, 1 bit for bit; each held at most 3 MiB" in said
    assert "not compared: layers.1: FSDP divides its parameters" in said


@pytest.mark.torch
def test_policy_raises_where_it_happens_and_the_command_tells(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from advisor.measurement import Policy, watch
    from advisor.measurement.watching.policy import NotApproved

    class Wide(torch.nn.Linear):  # type: ignore[name-defined,misc]
        def forward(self, x):  # type: ignore[no-untyped-def]
            return super().forward(x.float().to(x.dtype))

    model = Wide(64, 64).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(64, 64, dtype=torch.bfloat16)
    policy = Policy(widening="raise", above="8KiB")
    with pytest.raises(NotApproved, match=r"bf16 to fp32.*test_events.py:\d+"), watch(model, optimizer, policy=policy, log=tmp_path / "e.jsonl"):
        model(data).sum().backward()
    with watch(model, optimizer, policy=Policy(widening="raise", above="8KiB", approved=("*test_events.py",)), log=tmp_path / "f.jsonl") as seen:
        model(data).sum().backward()
        optimizer.step()
    assert [f.kind for f in seen.findings] == ["framework-upcast"]
    done = subprocess.run([sys.executable, "-m", "advisor.cli", "events", "f.jsonl", "--json"], cwd=tmp_path, capture_output=True, timeout=60)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert [f["cause"] for f in told["warnings"]] == ["framework-upcast"]
    assert told["ended"] and told["peaks"]["forward"] > 0


def test_a_long_run_rotates_away_steps_but_not_what_was_found(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl", max_bytes=4000, files=2)
    log.write("start", torch="2.13.0", stored_bytes=900)
    log.write("finding", "warning", cause="reference-copy", title="another model", where="a.py:3", bytes=7)
    for number in range(400):
        log.write("step", step=number, peaks={"forward": 1000}, parts={"weights": 900, "activations": 100})
    log.write("end")
    log.close()
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 2 * 4000
    found = summing.summed(read(tmp_path / "e.jsonl"), [])
    assert [f["where"] for f in found["warnings"]] == ["a.py:3"]  # once, though both files have it
    assert found["ended"] and found["stored"] == {"weights": 900} and found["software"] == {"torch": "2.13.0"}
    assert found["events"] == found["steps"] + 1 < 400  # what is written again is not counted again
    again = EventLog(tmp_path / "e.jsonl")
    again.write("start", torch="2.13.0")
    again.close()
    assert not summing.summed(read(tmp_path / "e.jsonl"), [])["ended"]  # another run began and was killed


def test_findings_are_bounded_in_a_file(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl", max_bytes=2000, files=2)
    for number in range(200):
        log.write("finding", "warning", cause="framework-upcast", title="a tensor is widened", where=f"a.py:{number}")
    log.close()
    assert all(f.stat().st_size <= 2000 for f in tmp_path.iterdir())
    assert [f["where"] for f in summing.summed(read(tmp_path / "e.jsonl"), [])["warnings"]][-1] == "a.py:199"


@pytest.mark.torch
def test_the_log_has_sizes_by_part_settings_versions_and_rates(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from advisor.cli import main
    from advisor.measurement import watch

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False))
    model[1].weight.register_hook(torch.zeros_like)  # trained, and yet without a gradient
    optimizer = torch.optim.AdamW(model.parameters())
    with watch(model, optimizer, log=tmp_path / "e.jsonl") as seen:
        for _ in range(4):
            model(torch.randn(8, 64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert seen.failed is None and seen.findings == []
    found = summing.summed(read(tmp_path / "e.jsonl"), [])
    weights = 4 * (64 * 64 + 64 + 64 * 64)
    sizes = {part: rest for part, *rest in summing.by_part(found)}
    assert sizes["weights"] == [weights, weights, weights]
    assert sizes["optimizer"][:2] == [2 * weights + 12, 2 * weights + 12]  # two moments, and the number of the step of three parameters
    assert sizes["gradients"] == [None, 0, weights]  # not saved, and freed between two steps
    assert found["resident"]["weights"] == {"fp32": weights}
    assert found["job"]["optimizer"]["name"] == "adamw" and found["software"]["torch"] == torch.__version__
    assert found["gradients"] == {"1.weight": {"zero": 1.0, "subnormal": 0.0}}
    assert main(["events", str(tmp_path / "e.jsonl")]) == 0


@pytest.mark.torch
def test_the_trainer_callback_watches(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from advisor.measurement.callback import watching

    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=96, max_position_embeddings=64
    )
    rows = [{"input_ids": [1, 2, 3, 4] * 4, "labels": [1, 2, 3, 4] * 4}] * 12
    callback = watching()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, max_steps=6, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    transformers.Trainer(model=transformers.LlamaForCausalLM(config), args=arguments, train_dataset=rows, callbacks=[callback]).train()
    assert callback.seen.step == 6
    assert callback.seen.observed >= 4
    assert [f for f in callback.seen.findings if f.kind != "framework-upcast"] == []
    assert {"forward", "backward", "step"} <= set(callback.seen.peaks)


def test_the_course_keeps_the_step_phase_beside_the_steps_number() -> None:
    events = [{"kind": "step", "step": 7, "peaks": {"forward": 100, "step": 900}}, {"kind": "step", "step": 9, "peaks": {"forward": 110, "step": 800}}]
    assert summing.summed(events, [])["course"] == [{"forward": 100, "step": 900, summing.AT: 7}, {"forward": 110, "step": 800, summing.AT: 9}]


def test_a_live_quantised_base_is_told() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from advisor.object_kinds import base_layout

    config = SimpleNamespace(quantization_config=SimpleNamespace(bnb_4bit_quant_type="nf4"))
    assert base_layout(SimpleNamespace(is_loaded_in_4bit=True, config=config)) == "nf4"
    assert base_layout(SimpleNamespace(is_loaded_in_4bit=True)) == "fp4"  # bitsandbytes' own default
    assert base_layout(SimpleNamespace(is_loaded_in_8bit=True)) == "int8"
    assert base_layout(SimpleNamespace()) is None
