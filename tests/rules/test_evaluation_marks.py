"""What tells one batch of an evaluation from what is collected of all: the first batch, and samples that only the training cuts."""

from __future__ import annotations

from advisor.diagnosis import diagnose

TRACE = (
    'Traceback (most recent call last):\n  File "/app/model.py", line 387, in validation_step\n    scores = (masks.sigmoid() * logits).sum(2)\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.15 GiB. GPU 0 has a total capacity of 11.76 GiB of which 2.62 GiB is free. "
    "Including non-PyTorch memory, this process has 9.14 GiB memory in use. Of the allocated memory 8.71 GiB is allocated by PyTorch, and "
    "194.56 MiB is reserved by PyTorch but unallocated.\n"
)
CONFIG = (
    "batch_size: 2\ntrain_dataset:\n  transforms:\n    - type: RandomPaddingCrop\n      crop_size: [512, 512]\n    - type: Normalize\n"
    "val_dataset:\n  transforms:\n    - type: Normalize\n{}"
)


def _confidence(cause: str, *texts: tuple[str, str]) -> float:
    report = diagnose([(name, text.encode()) for name, text in texts])
    return next((f.confidence for f in report.findings if f.cause == cause), 0.0)


def test_the_first_batch_has_collected_nothing() -> None:
    first = _confidence("eval-accumulation", ("e.txt", TRACE), ("log.txt", "Val Step    1/180\n"))
    later = _confidence("eval-accumulation", ("e.txt", TRACE), ("log.txt", "Val Step   97/180\n"))
    assert first < 0.2 < later


def test_validation_samples_that_are_taken_as_they_come() -> None:
    uncut = _confidence("eval-batch", ("e.txt", TRACE), ("c.yml", CONFIG.format("")))
    cut = _confidence("eval-batch", ("e.txt", TRACE), ("c.yml", CONFIG.format("    - type: Resize\n      target_size: [512, 512]\n")))
    assert uncut > cut
