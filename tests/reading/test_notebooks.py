"""Notebooks in every layout that JSON allows: settings and errors are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from advisor.reading import notebooks, read

ESC = "\x1b[0;31m"
CODE = [
    "from transformers import AutoModelForCausalLM, TrainingArguments, Trainer\n",
    "# CUDA out of memory happens in the next cell\n",
    "model = AutoModelForCausalLM.from_pretrained('facebook/opt-1.3b')\n",
    "args = TrainingArguments(output_dir='o', per_device_train_batch_size=6, bf16=True)\n",
    "Trainer(model=model, args=args, train_dataset=d).train()",
]
MESSAGE = "CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.25 GiB is free."
ERROR = {
    "output_type": "error", "ename": "OutOfMemoryError", "evalue": MESSAGE,
    "traceback": [
        f"{ESC}{'-' * 75}\x1b[0m", f"{ESC}OutOfMemoryError\x1b[0m       Traceback (most recent call last)",
        "Cell \x1b[0;32mIn[2], line 5\x1b[0m\n\x1b[0;32m----> 5\x1b[0m Trainer(model=model, args=args, train_dataset=d).train()",
        "File \x1b[0;32m/usr/lib/python3.11/site-packages/torch/optim/adamw.py:200\x1b[0m, in \x1b[0;36mAdamW.step\x1b[0;34m(self)\x1b[0m\n"
        "\x1b[1;32m    200\x1b[0m     state['exp_avg'] = torch.zeros_like(p)",
        f"{ESC}OutOfMemoryError\x1b[0m: {MESSAGE}",
    ],
}  # fmt: skip


def notebook(outputs: list[Any], source: Any = CODE, remark: str = "") -> dict[str, Any]:
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": [remark]}] if remark else []
    cells.append({"cell_type": "code", "execution_count": 2, "metadata": {}, "source": source, "outputs": outputs})
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


LAYOUTS = {
    "one line": lambda data: json.dumps(data),
    "tight": lambda data: json.dumps(data, separators=(",", ":"), ensure_ascii=False),
    "indented": lambda data: json.dumps(data, indent=1),
    "a cell a line": lambda data: '{"cells":[' + ",\n".join(json.dumps(c) for c in data["cells"]) + '],\n"metadata":{},"nbformat":4}',
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("name", ["run.ipynb", "pasted"])
def test_every_layout_says_the_same(layout: str, name: str) -> None:
    found = read([(name, LAYOUTS[layout](notebook([ERROR], remark="I use a Tesla T4")))])
    assert found.job.model.name == "facebook/opt-1.3b"
    assert found.job.batch.micro_batch == 6
    (failure,) = found.evidence.failures
    assert failure.kind == "gpu-memory"
    assert [frame.file for frame in failure.frames][-1] == "torch/optim/adamw.py"
    assert failure.capacity_bytes is not None
    assert found.job.hardware.gpu == "t4-16gb"
    assert "notebook" in found.evidence.sources[0].kind
    assert not found.evidence.not_understood


def test_an_error_without_a_traceback_and_a_source_of_one_text() -> None:
    bare = {"output_type": "error", "ename": "OutOfMemoryError", "evalue": MESSAGE, "traceback": []}
    found = read([("a.ipynb", json.dumps(notebook([bare], source="".join(CODE))))])
    assert found.job.batch.micro_batch == 6
    assert len(found.evidence.failures) == 1


def test_what_a_stream_printed_is_read_and_pictures_are_not() -> None:
    outputs = [
        {
            "output_type": "stream",
            "name": "stdout",
            "text": ["Traceback (most recent call last):\n", '  File "a.py", line 1, in <module>\n', f"torch.OutOfMemoryError: {MESSAGE}\n"],
        },
        {"output_type": "display_data", "data": {"image/png": "A" * 5000, "text/plain": ["<Figure>"]}},
    ]
    data = json.dumps(notebook(outputs))
    opened = notebooks.opened(data)
    assert opened is not None
    assert "AAAA" not in opened.shown + opened.cells
    assert len(read([("a.ipynb", data)]).evidence.failures) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"cells": 3, "cell_type": 1}', '{"cells": [1, null, {"cell_type": 5}], "metadata": {}}',
        '{"cells": [{"cell_type": "code", "outputs": 5, "source": 7}], "nbformat": 4}',
        '{"cells": [{"cell_type": "code", "outputs": [3, {"output_type": "error", "traceback": 9}]}], "nbformat": 4}', '{"cells"' + "[" * 9000 + '"cell_type"',
        '{"cells": ' + "[" * 100_000 + '"cell_type"',
    ],
    ids=["empty", "number", "odd cells", "odd outputs", "odd error", "broken", "deep"],
)  # fmt: skip
def test_what_is_no_notebook_or_an_odd_one_is_read_calmly(text: str) -> None:
    opened = notebooks.opened(text)
    assert opened is None or isinstance(opened.shown, str)
    read([("a.ipynb", text)])
