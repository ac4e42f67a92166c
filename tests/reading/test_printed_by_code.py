"""Labels of a log that the script beside it explains."""

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.units import GIB, MIB

CODE = """print(f"before 1 {torch.cuda.memory_reserved()/(1024**2)}")
model = model.to(self.device)
print(f"before 2 {torch.cuda.memory_reserved()/(1024**2)}")
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=device_ids)
print(f"after ddp {torch.cuda.memory_reserved()/(1024**2)}")
"""
LOG = "before 1 0.0\nbefore 2 172.0\nafter ddp 324.0\n"


def test_the_scripts_labels_and_divisor_explain_the_log() -> None:
    samples = read([("train.py", CODE), ("log.txt", LOG)]).evidence.samples
    assert [(s.label, s.reserved_bytes) for s in samples] == [("before 1", 0), ("before 2", 172 * MIB), ("after ddp", 324 * MIB)]


def test_without_the_script_the_numbers_say_nothing() -> None:
    assert read([("log.txt", LOG)]).evidence.samples == ()


@pytest.mark.parametrize(
    ("call", "unit"),
    [("torch.cuda.memory_allocated() / 1024 ** 3", GIB), ("torch.cuda.memory_allocated()/2**30", GIB), ("torch.cuda.memory_allocated() // 1e6", 10**6)],
)
def test_usual_divisors(call: str, unit: int) -> None:
    samples = read([("train.py", f'print(f"held {{{call}}}")\n'), ("log.txt", "held 3.0\n")]).evidence.samples
    assert [s.allocated_bytes for s in samples] == [3 * unit]


def test_wrapping_for_data_parallelism_takes_the_model_once_more() -> None:
    said = "Does DDP keep another copy? The next model ends with CUDA out of memory on the same card.\n"
    report = diagnose([("said.txt", said), ("train.py", CODE), ("log.txt", LOG)])
    assert report.findings[0].cause == "communication-buffers"
