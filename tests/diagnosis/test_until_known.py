"""An error message alone: what can be done at once, and what would settle the cause; where the text says more, nothing of this is shown."""

from __future__ import annotations

from advisor.diagnosis import diagnose, replanned
from advisor.planner.constraints import Constraints

ALONE = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.76 GiB total capacity; 8.33 GiB already allocated; "
    "1.10 GiB free; 8.80 GiB reserved in total by PyTorch)\n"
)


def _steps(text: str) -> list[str]:
    return [step.technique for step in diagnose([("error.txt", text.encode())]).plan.steps]


def test_a_bare_message_gets_what_helps_in_any_case() -> None:
    report = diagnose([("error.txt", ALONE.encode())])
    assert not report.findings
    assert [step.technique for step in report.plan.steps] == ["smaller-micro-batch", "gradient-checkpointing"]
    assert not any(step.estimated for step in report.plan.steps)
    assert "traceback" in report.plan.summary


def test_what_is_known_to_be_set_is_not_offered() -> None:
    args = b"gradient_checkpointing: true\nper_device_train_batch_size: 1\noutput_dir: out\n"
    assert not diagnose([("args.yaml", args), ("error.txt", ALONE.encode())]).plan.steps


def test_what_the_reader_excludes_is_not_offered() -> None:
    report = diagnose([("error.txt", ALONE.encode())])
    kept = replanned(report, allow=Constraints(exclude=frozenset({"smaller-micro-batch"})))
    assert [step.technique for step in kept.plan.steps] == ["gradient-checkpointing"]


def test_outside_a_training_step_it_is_silent() -> None:
    loading = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    AutoModelForCausalLM.from_pretrained(path)\n'
    assert "smaller-micro-batch" not in _steps(loading + ALONE.replace("RuntimeError", "torch.cuda.OutOfMemoryError"))
