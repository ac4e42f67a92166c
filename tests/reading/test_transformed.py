"""The same text in other clothes: what is read of a failure does not depend on who printed, wrapped, quoted or copied it.

Each dev case's log is changed in each way of ``transformed``; its first failure must keep its frames, their code and its counters.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from advisor.diagnosis import diagnose
from advisor.evidence import Failure
from advisor.reading.failures import failures_of
from advisor.reading.lines import excerpt
from reading.transformed import ALL, CUT, RAY, TORCHRUN, subsets

CASES = Path(__file__).parents[1] / "cases"
LOGS = ("error.txt", "log.txt", "question.txt")
LARGEST = 100_000  # a log of 5 MB and a YAML bomb have tests of their own
HEAD = "Traceback (most recent call last):"
FRAMES = (
    '  File "/usr/lib/python3/dist-packages/torch/optim/adamw.py", line 237, in step\n    self._init_group(\n'
    '  File "/usr/lib/python3/dist-packages/torch/optim/adamw.py", line 173, in _init_group\n    state["exp_avg"] = torch.zeros_like('
)
ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."


@cache
def _logs() -> dict[str, str]:
    files = [file for case in sorted(CASES.iterdir()) for file in sorted((case / "input").glob("*.txt")) if file.name in LOGS]
    wrapped = "control-locale-wrapped-crlf"  # is such a text itself
    return {f"{file.parts[-3]}/{file.name}": file.read_text(encoding="utf-8") for file in files if file.stat().st_size < LARGEST and file.parts[-3] != wrapped}


def _read(text: str) -> list[Failure]:
    return failures_of(excerpt("log.txt", [text.encode()]))


@cache
def _as_it_is(name: str) -> list[Failure]:
    return _read(_logs()[name])


def _said(failures: list[Failure], last: int = 0) -> object:
    if not failures:
        return None
    first = failures[0]
    frames = tuple((frame.file, frame.line, frame.function, frame.code) for frame in first.frames)
    return first.kind, first.requested_bytes, first.capacity_bytes, first.free_bytes, first.allocated_bytes, frames[-last:]


@pytest.mark.parametrize("way", sorted(ALL))
def test_a_failure_keeps_its_frames_and_counters(way: str) -> None:
    last = 3 if way in CUT else 0
    changed = {name: new for name, text in _logs().items() if (new := ALL[way](text)) != text}
    assert len(changed) >= 5
    missed = [name for name, text in changed.items() if _said(_read(text), last) != _said(_as_it_is(name), last)]
    assert not missed


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("ipython", "quoted"),
        ("rich", "docker compose"),
        ("rich", "indented by four"),
        ("stamp on some", "indented by four"),
        ("commented", "blank lines between"),
        ("torchrun on all", "wrapped at 80"),
        ("ray on some", "journal"),
        ("no indentation, headless", "numbered lines"),
        ("torchrun on the error alone", "docker json"),
        ("headless, ray on the frames", "entities"),
    ],
)
def test_two_ways_at_once(inner: str, outer: str) -> None:
    changed = {name: ALL[outer](new) for name, text in _logs().items() if (new := ALL[inner](text)) != text}
    assert len(changed) >= 30
    assert not [name for name, text in changed.items() if _said(_read(text)) != _said(_as_it_is(name))]


@pytest.mark.parametrize("number", range(0, len(ALL), 3))
def test_a_case_keeps_its_cause(number: int) -> None:
    """One case for each third way, in turn; all of them with all ways take minutes."""
    way = sorted(ALL)[number]
    changed = [name for name, text in _logs().items() if ALL[way](text) != text]
    name = changed[number % len(changed)].partition("/")[0]
    files = sorted((CASES / name / "input").iterdir())
    before = diagnose([(file.name, file.read_bytes()) for file in files])
    after = diagnose([(file.name, ALL[way](file.read_text(encoding="utf-8")).encode() if file.name in LOGS else file.read_bytes()) for file in files])
    assert [f.cause for f in after.findings[:1]] == [f.cause for f in before.findings[:1]]


@pytest.mark.parametrize("prefix", [TORCHRUN, RAY], ids=["torchrun", "ray"])
@pytest.mark.parametrize("chosen", range(1, 63, 4))
def test_any_subset_of_lines_may_bear_the_label(prefix: str, chosen: int) -> None:
    plain = f"{HEAD}\n{FRAMES}\n{ERROR}"
    labelled = subsets(plain, prefix, lambda number: bool(chosen >> number & 1))
    assert labelled != plain
    assert _said(_read(labelled)) == _said(_read(plain))
    assert len(_read(labelled)[0].frames) == 2


def test_a_failure_without_a_label_takes_the_rank_of_its_frames() -> None:
    text = "\n".join(f"[rank3]: {line}" for line in FRAMES.split("\n")) + f"\n{ERROR}"
    assert [(f.rank, len(f.frames)) for f in _read(text)] == [(3, 2)]


def test_two_writers_among_each_other_are_kept_apart() -> None:
    """A launcher's own traceback without a label, into which a rank prints."""
    own = FRAMES.split("\n")
    text = "\n".join([HEAD, own[0], f"[rank1]: {HEAD}", own[1], '[rank1]:   File "/job/train.py", line 9, in main', "[rank1]:     step()", f"[rank1]: {ERROR}"])
    failure = _read(text)[0]
    assert [frame.file for frame in failure.frames] == ["train.py"]
    assert failure.rank == 1


def test_a_launchers_traceback_above_takes_nothing_of_a_ranks() -> None:
    text = (
        f'{HEAD}\n  File "/job/a.py", line 3, in a\n    b()\nRuntimeError: first\n[rank0]: {HEAD}\n[rank0]:   File "/job/c.py", line 4, in c\n[rank0]: {ERROR}'
    )
    failures = _read(text)
    assert [[frame.file for frame in failure.frames] for failure in failures] == [["a.py"], ["c.py"]]
    assert [failure.rank for failure in failures] == [None, 0]


def test_boxes_of_one_width_are_no_broken_lines() -> None:
    box = ["+" + "-" * 76 + "+", "| 0  A100-SXM4-80GB  Off |".ljust(40) + "|  70000MiB / 81920MiB |".ljust(37) + "|"]
    lines = excerpt("smi.txt", ["\n".join([ERROR, *box, *box]).encode()]).lines
    assert [line.text for line in lines if line.text.startswith(("|", "+"))] == box * 2


def test_what_stands_before_prose_is_no_margin() -> None:
    text = f"Note: see below\nNote: the File is named train.py\n{HEAD}\n{FRAMES}\n{ERROR}\nNote: it worked before"
    assert [line.text for line in excerpt("q.txt", [text.encode()]).lines if "Note" in line.text][-1] == "Note: it worked before"
