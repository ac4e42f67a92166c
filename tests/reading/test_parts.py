"""Everything in one paste is read as the same things in files are."""

from __future__ import annotations

import time

import pytest

from advisor.diagnosis import diagnose
from advisor.knowledge import load_yaml, path
from advisor.reading import read
from advisor.reading.parts import parts

SNIPPET = 'args = TrainingArguments(per_device_train_batch_size=2, bf16=True, deepspeed="ds.json")\nTrainer(model=model, args=args)\n'
DEEPSPEED = '{"bf16": {"enabled": true},\n "zero_optimization": {"stage": 2, "note": "a } in a string"}}\n'
ACCELERATE = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_version: 2\nnum_processes: 4\nmixed_precision: bf16\n"
ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.00 GiB is free.\n"


def facts(text: str, name: str = "paste.txt") -> dict[str, tuple[object, str | None]]:
    return {f.field: (f.value, f.where) for f in read([(name, text)]).evidence.facts}


def test_a_json_config_between_a_snippet_and_an_error_is_read_where_it_stands() -> None:
    found = facts(SNIPPET + "\n" + DEEPSPEED + "\n" + ERROR)
    assert found["batch.micro_batch"] == (2, "paste.txt:1")
    assert found["parallel.strategy"] == ("zero2", "paste.txt:5")


def test_a_yaml_config_below_an_error_is_read() -> None:
    found = facts(ERROR + "\nmy accelerate config:\n" + ACCELERATE + "\nany idea?\n")
    assert found["parallel.strategy"][0] == "fsdp2"
    assert found["hardware.gpus_per_node"][0] == 4


def test_fenced_blocks_of_a_post_are_read() -> None:
    found = facts(f"It fails here:\n```\n{ERROR}```\nwith\n```python\n{SNIPPET}```\nand\n~~~json\n{DEEPSPEED}~~~\n")
    assert (found["batch.micro_batch"][0], found["parallel.strategy"][0]) == (2, "zero2")


@pytest.mark.parametrize("sample", [file.stem for file in sorted(path("samples").glob("*.yaml"))])
def test_every_sample_says_the_same_as_one_paste(sample: str) -> None:
    files = load_yaml("samples", f"{sample}.yaml")["files"]
    apart, together = diagnose(list(files.items())), diagnose([("paste.txt", "\n\n".join(files.values()))])
    assert (together.verdict, [f.cause for f in together.findings[:1]]) == (apart.verdict, [f.cause for f in apart.findings[:1]])


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 1.2, 'epoch': 0.1}\n" * 50,  # what the Trainer prints is no config
        '{"step": 1, "train_batch_size": 4}\n' * 50,  # a log in JSON
        "Epoch: 1\nloss: 2.0\nlr: 0.1\n" * 20,
        "class A:\n    x: int = 3\n    y: int = 4\n    z: int = 5\n",
        "```\nnever closed\n",
        '{"never": "closed"\n',
    ],
)
def test_what_only_looks_like_a_config_stays_where_it_is(text: str) -> None:
    assert parts("paste.txt", text) == ([], text)


def test_parts_and_rest_keep_their_lines() -> None:
    text = "a\n" + DEEPSPEED + "b\n```\nc: 1\n```\nd\n"
    found, rest = parts("paste.txt", text)
    assert {part.count("\n") for part in found} | {rest.count("\n")} == {text.count("\n")}
    assert all(line in ("", "a", "b", "```", "d") for line in rest.split("\n"))


@pytest.mark.parametrize("text", ['{"a":' * 20_000, "```\n" * 20_000, "a: 1\n" * 100_000, '{"' + "x" * 1_000_000], ids=["open", "fences", "keys", "long"])
def test_hostile_pastes_end(text: str) -> None:
    before = time.process_time()
    parts("paste.txt", text)
    assert time.process_time() - before < 2
