"""When a run failed: as its text shows it, else as sizes imply it, and then the sentence says no more than most likely."""

from __future__ import annotations

from advisor.diagnosis import diagnose

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 50.00 MiB is free. "
    "Of the allocated memory {allocated} GiB is allocated by PyTorch, and 60.00 MiB is reserved by PyTorch but unallocated."
)
SCRIPT = 'model = AutoModelForCausalLM.from_pretrained("{model}", torch_dtype=torch.bfloat16)\nTrainer(model, TrainingArguments("out")).train()\n'


def test_weights_larger_than_the_card_fail_at_loading_though_batch_and_length_are_unknown() -> None:
    report = diagnose([("error.txt", OOM.format(allocated="22.90")), ("train.py", SCRIPT.format(model="huggyllama/llama-13b"))])
    assert report.phase == "load"
    assert "most likely while loading" in report.sentence


def test_weights_that_fit_say_nothing_of_the_phase() -> None:
    report = diagnose([("error.txt", OOM.format(allocated="22.90")), ("train.py", SCRIPT.format(model="Qwen/Qwen2.5-1.5B"))])
    assert report.phase != "load"
    assert "while loading" not in report.sentence


def test_a_traceback_settles_it() -> None:
    frame = 'Traceback (most recent call last):\n  File "/w/torch/_tensor.py", line 581, in backward\n    torch.autograd.backward(\n'
    report = diagnose([("error.txt", frame + OOM.format(allocated="22.90"))])
    assert report.phase == "backward"
    assert "most likely in the backward" not in report.sentence
    assert "in the backward pass" in report.sentence
