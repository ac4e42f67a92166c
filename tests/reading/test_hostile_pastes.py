"""Pasted texts that ask for endless work or endless depth are read within bounds, and never raise."""

from __future__ import annotations

import time

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.reading.configs import read_config

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.00 GiB is free.\n"
HOSTILE = {
    "deep attribute": "import os\nfor x in y:\n    loss = a" + ".b" * 1500 + "(x)\n    l.append(loss)\n",
    "many carried states": "def train():\n  for x in y:\n" + "".join(f"    h = model(h, {i})\n" for i in range(800)) + "    loss.backward()\n",
    "one launch by many ranks": "torchrun --nproc_per_node 8 train.py --bf16 True --per_device_train_batch_size 4\n" * 3000,
    "many launches": "".join(f"torchrun --nproc_per_node 8 train{i}.py --bf16 True --seed {i}\n" for i in range(3000)),
    "arrays of arrays": "A=(" + "w " * 4000 + ")\n" + "B=(" + "${A[@]} " * 30_000 + ")\ntorchrun train.py ${B[@]}\n",
    "many negations": "if " + "! " * 3000 + "true; then\ntorchrun train.py --bf16 True\nfi\n",
    "negations in a test": "if [ " + "!" * 3000 + "x ]; then\ntorchrun train.py --bf16 True\nfi\n",
    "a rule of dashes": "----- arguments -----\n  a_b ....... 1\n" + "-" * 200_000 + "\n",
    "a setting and spaces": "batch_size=2 lr=3" + " " * 50_000 + "x\n",
    "a system and spaces": ("  \t  " * 700 + "OS Windows-x memory\n") * 40,
    "a count of nothing": "trainable params: ,,, || all params: ,,,, || trainable%: ,\n" + OOM,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_read_within_seconds(text: str) -> None:
    before = time.process_time()
    read([("paste.txt", text)])
    read([("launch.sh", text)])
    assert time.process_time() - before < 6  # a few tenths where nothing else runs


def test_a_count_without_digits_is_no_count() -> None:
    assert diagnose([("error.txt", HOSTILE["a count of nothing"])]).verdict == "ooms"


@pytest.mark.parametrize(("signs", "runs"), [(0, True), (1, False), (2, True), (3, False)])
def test_negations_are_counted(signs: int, runs: bool) -> None:
    script = f"if {'! ' * signs}true; then\nARGS='--per_device_train_batch_size 2'\nelse\nARGS='--per_device_train_batch_size 4'\nfi\ntorchrun train.py $ARGS\n"
    found = read_config("launch.sh", script)
    assert found is not None
    assert {f.value for f in found.facts if f.field == "batch.micro_batch"} == {2 if runs else 4}


def test_pythons_words_in_a_json_like_config_are_no_placeholders() -> None:
    found = read_config("ds_config.json", '{"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}')
    assert found is not None
    assert {f.field: f.value for f in found.facts}["precision.compute"] == "bf16"


_LONG = "0x" + "f" * 6000  # a number of 7,225 digits


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("paste.txt", f"config: {{'a': {_LONG}, 'lora_r': 8, 'batch_size': 2}}\n"),
        ("paste.txt", "config: {'a': {(1, 2): 3}, 'lora_r': 8, 'batch_size': 2}\n"),
        ("config.yaml", f"per_device_train_batch_size: {_LONG}\nlearning_rate: 1e-4\n"),
        ("config.toml", f"batch_size = {_LONG}\n"),
        ("train.py", f"batch_size = {_LONG}\nlearning_rate = 1e-4\n"),
        ("job.yaml", f"version: 1\nbatch:\n  micro_batch: {_LONG}\n"),
    ],
    ids=["mapping", "key of two", "yaml", "toml", "python", "job"],
)
def test_what_cannot_be_written_out_is_left(name: str, text: str) -> None:
    assert read([(name, text)]).evidence.failure is None
