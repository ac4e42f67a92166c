"""Windows, as a text shows it, and what follows: no `export`, and no expandable segments, which PyTorch does not have there."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.frameworks import settings
from advisor.job import Job
from advisor.reading import read

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.37 GiB. GPU 0 has a total capacity of 11.99 GiB of which 0 bytes is free. Of the "
    "allocated memory 5.91 GiB is allocated by PyTorch, and 4.88 GiB is reserved by PyTorch but unallocated.\n"
)


def release(text: str) -> str | None:
    return (read([("log.txt", text)]).job.framework.versions or {}).get("windows")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Traceback (most recent call last):\n  File "C:\\work\\train.py", line 20, in <module>\n    loss.backward()\n', "Windows"),
        ('Traceback (most recent call last):\n  File "C:\\Users\\ann\\train.py", line 20, in <module>\n    loss.backward()\n', "Windows"),
        ("(base) PS D:\\train> python train.py\n", "PowerShell"),
        ("D:\\train>python train.py\n", "cmd"),
        ("OS: Microsoft Windows 11 Pro\n", "11"),
        ("- Platform: Windows-10-10.0.19045-SP0\n", "10"),
        ('  File "/mnt/c/ml/train.py", line 20, in <module>\n', None),
        ("OS: Ubuntu 22.04.4 LTS\nI also have Windows 11 on this machine\n", None),
        ("# the same code runs in C:\\work\\train.py\n", None),
    ],
)
def test_windows_is_read_where_a_run_shows_it(text: str, value: str | None) -> None:
    assert release(text) == value


def offered(path: str) -> list[str]:
    report = diagnose([("log.txt", f'Traceback (most recent call last):\n  File "{path}", line 20, in <module>\n    loss.backward()\n{OOM}')])
    assert report.findings[0].cause == "fragmentation"
    return [step.technique for step in report.plan.steps]


def test_expandable_segments_are_offered_on_linux_alone() -> None:
    assert offered("/srv/train.py")[0] == "expandable-segments"
    assert offered("C:\\work\\train.py")[:2] == ["bounded-shapes", "empty-cache"]


def test_a_variable_is_set_as_the_shell_of_the_system_does_it() -> None:
    before, after = Job(), Job().but(framework={"allocator": {"max_split_size_mb": 128}})
    assert settings(before, after, None)["launch"] == ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",)
    shown = settings(before, after.but(framework={"versions": {"windows": "11"}}), None)["launch"]
    assert shown == ('$env:PYTORCH_CUDA_ALLOC_CONF = "max_split_size_mb:128"  # PowerShell; in cmd: set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128',)
