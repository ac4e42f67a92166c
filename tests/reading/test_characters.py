"""One alphabet and one form of numbers for every reader; a line of a collector's JSON is the line that it wraps."""

from __future__ import annotations

import json

import pytest

from advisor.reading.characters import broken, message, plain
from advisor.reading.figures import figures
from advisor.units import GIB, MIB


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("12,345 MB", "12345 MB"),
        ("21,3 GB", "21.3 GB"),
        ("1.234,5 MB", "1234.5 MB"),
        ("1,234.5 MB", "1234.5 MB"),
        ("12'345 MiB", "12345 MiB"),
        ("12\u202f345 MB", "12345 MB"),
        ("File &quot;a.py&quot;, line 3, in &lt;module&gt;", 'File "a.py", line 3, in <module>'),
        ("&amp;quot;twice&amp;quot;", '"twice"'),
        ("a\u00a0b \u201cc\u201d \u2019d\u2019", "a b \"c\" 'd'"),
        ("RuntimeError\uff1a CUDA out of memory\uff0c tried", "RuntimeError:  CUDA out of memory,  tried"),
    ],
)
def test_what_stands_for_the_same(text: str, same: str) -> None:
    assert plain(text) == same


@pytest.mark.parametrize(
    "text", ["2,345 GB", "1.234 GB", "batches 1,2,4 GB", "lr 1,000 steps", "a & b; c", "\u663e\u5b58\uff1a24G\uff0c\u4e0d\u591f", "36.42 GiB"]
)
def test_what_could_be_either_stays(text: str) -> None:
    assert plain(text) == text


def test_a_collectors_line() -> None:
    wrapped = json.dumps({"log": '  File "a.py", line 3, in b\n', "stream": "stderr", "time": "2025-03-04T11:12:13Z"})
    assert message(wrapped) == '  File "a.py", line 3, in b'
    assert message('{"message": "no collector has this alone"}') == '{"message": "no collector has this alone"}'
    assert message('{"model": "a", "line": 3, "time": 1}') == '{"model": "a", "line": 3, "time": 1}'


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("memory allocated on cuda:0 36.42 GiB", round(36.42 * GIB)),
        ("memory allocated gpu 1: 12 GB", 12 * GIB),
        ("memory allocated step 12: 30.5 GB", round(30.5 * GIB)),
        ("allocated at the start of the step  2.5 GiB", round(2.5 * GIB)),
        ("memory allocated 512 MB", 512 * MIB),
    ],
)
def test_the_number_of_a_card_or_a_step_is_no_figure(text: str, held: int) -> None:
    assert [(found.what, found.bytes) for found in figures(text)] == [("allocated", held)]


def test_a_traceback_within_a_string() -> None:
    lines = ["Traceback (most recent call last):", '  File "/job/a.py", line 3, in f', '    x["a"] = g()', "RuntimeError: CUDA out of memory."]
    once = json.dumps("\n".join(lines))
    assert broken(f"died: {once[1:-1]}") == ["died: ", *lines]
    assert broken(f"died: {json.dumps(once)[3:-3]}") == ["died: ", *lines]
    assert broken("saved to C:\\new\\file.py") == ["saved to C:\\new\\file.py"]


def test_a_notebooks_links_are_paths() -> None:
    shown = (
        "[/usr/local/lib/python3.10/dist-packages/transformers/trainer_pt_utils.py](https://localhost:8080/#) in torch_pad_and_concatenate(tensor1, tensor2)"
    )
    assert plain(shown) == "/usr/local/lib/python3.10/dist-packages/transformers/trainer_pt_utils.py in torch_pad_and_concatenate(tensor1, tensor2)"
    assert plain("see [setup.py](https://example.org/setup.py) for it") == "see [setup.py](https://example.org/setup.py) for it"
