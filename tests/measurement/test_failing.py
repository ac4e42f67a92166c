"""A watched run that dies for want of memory: cause and first change under the traceback, facts in the bundle, and nothing of the user's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.torch

from advisor.measurement import watch  # noqa: E402
from advisor.measurement.watching import failing  # noqa: E402

MODEL = """
import torch, transformers
torch.set_num_threads(1)
config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=96,
                                  name_or_path="/home/someone/secret-model")
model = transformers.LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters())
OOM = ("CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free. Including non-PyTorch memory, "
       "this process has 77.94 GiB memory in use. Of the allocated memory 75.10 GiB is allocated by PyTorch, and 2.05 GiB is reserved by PyTorch but "
       "unallocated.")
"""
PLAIN = """
from advisor.measurement import watch
kept = [p.detach().clone() for p in model.parameters()]
with watch(model, optimizer, log="events.jsonl"):
    for step in range(3):
        tokens = torch.randint(0, 96, (2, 16))
        loss = model(input_ids=tokens, labels=tokens).loss
        if step == 2:
            raise torch.OutOfMemoryError(OOM)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
TRAINER = """
from advisor.measurement.callback import watching
class Dies(transformers.Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        if self.state.global_step == 2:
            raise torch.OutOfMemoryError(OOM)
        return loss
arguments = transformers.TrainingArguments(output_dir="out", per_device_train_batch_size=2, max_steps=4, report_to=[], save_strategy="no", use_cpu=True,
                                           disable_tqdm=True)
rows = [{"input_ids": [1, 2, 3, 4] * 4, "labels": [1, 2, 3, 4] * 4}] * 12
Dies(model=model, args=arguments, train_dataset=rows, callbacks=[watching(log="events.jsonl")]).train()
"""


@pytest.mark.parametrize(("program", "framework"), [(PLAIN, "custom"), (TRAINER, "hf-trainer")], ids=["plain", "trainer"])
def test_the_cause_stands_under_the_traceback_and_the_bundle_opens(tmp_path: Path, program: str, framework: str) -> None:
    (tmp_path / "train.py").write_text(MODEL + program)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    above, _, under = done.stderr.partition("torch.OutOfMemoryError: CUDA out of memory")
    assert "Traceback (most recent call last)" in above
    assert "\nadvisor: Does not fit" in under and "\nWhy: " in under and "\nMore: advisor diagnose events.diagnosis.json" in under
    text = (tmp_path / "events.diagnosis.json").read_text()
    bundle = json.loads(text)
    assert bundle["job"]["batch"] | {"micro_batch": 2, "seq_len": 16} == bundle["job"]["batch"]
    assert bundle["job"]["framework"]["name"] == framework
    assert bundle["job"]["optimizer"]["name"] == "adamw"
    assert bundle["job"]["model"]["config"]["hidden_size"] == 32
    assert bundle["watched"]["step"] == 2 and bundle["watched"]["peaks"]["forward"]["bytes"] > 0
    assert "secret" not in text and "/home" not in text and "someone" not in text
    logged = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e["kind"] for e in logged if e["kind"] in ("out-of-memory", "failed", "end")] in (["failed", "out-of-memory", "end"],)
    if framework == "custom":
        assert "Seen while it ran: kept holds the model's weights again" in under and "at train.py:" in under
    opened = subprocess.run(
        [sys.executable, "-m", "advisor.cli", "diagnose", "events.diagnosis.json", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert json.loads(opened.stdout)["job"]["batch"]["seq_len"] == 16


def test_the_hosts_memory_too(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="allocate memory") as caught, watch(model, log=tmp_path / "e.jsonl"):
        torch.empty(1 << 60, dtype=torch.uint8)
    notes = "\n".join(caught.value.__notes__)
    assert "advisor: " in notes and "host" in notes.lower()


def test_other_failures_and_refused_explanations_stay_as_they_are(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    with pytest.raises(ValueError, match="a shape") as other, watch(model):
        raise ValueError("a shape is wrong")
    assert not hasattr(other.value, "__notes__")
    with pytest.raises(MemoryError) as caught, watch(model, explain=False, log=tmp_path / "e.jsonl"):
        raise MemoryError
    assert not hasattr(caught.value, "__notes__")
    assert any(json.loads(line)["kind"] == "out-of-memory" for line in (tmp_path / "e.jsonl").read_text().splitlines())


def test_torchs_own_observer_is_asked_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attached.append, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(failing, "counters", lambda: {"allocated_bytes.all.current": 5})

    class Told:
        moment: dict[str, int]

        def tell(self, moment: dict[str, int]) -> None:
            self.moment = moment

    told = Told()
    assert failing.observe(told.tell)
    attached[0](0, 100, 1000, 10)
    assert told.moment == {"device": 0, "requested": 100, "total": 1000, "free": 10, "allocated_bytes.all.current": 5}
    del told
    attached[0](0, 100, 1000, 10)  # who watched has gone


def test_the_last_hook_leaves_what_others_put_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", before)
    hook = failing.LastHook(lambda error: None)
    assert sys.excepthook is hook
    hook.remove()
    assert sys.excepthook is before
