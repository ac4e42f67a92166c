"""What a file says wins over what its name suggests."""

from __future__ import annotations

import json

import pytest

from advisor.reading import read

LAUNCH = "torchrun --nproc_per_node 4 finetune.py --model_name_or_path gpt2-xl --deepspeed conf/zero2_offload.json --per_device_train_batch_size 1"
STAGE_3 = json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1})


@pytest.mark.parametrize("name", ["zero2_offload.json", "conf/zero2_offload.json", "ds_config.json", "pasted"])
@pytest.mark.parametrize("last", ["launch", "config"])
def test_the_content_of_a_deepspeed_file_wins_over_its_name(name: str, last: str) -> None:
    texts = [(name, STAGE_3), ("start.sh", LAUNCH)]
    reading = read(texts if last == "launch" else texts[::-1])
    assert reading.job.parallel.strategy == "zero3"
    assert reading.job.offload.optimizer != "cpu"  # the name's "offload" goes with it
    assert not any("by the name of" in (fact.why or "") for fact in reading.evidence.facts)
    assert not any(conflict.other.value == "zero2" for conflict in reading.evidence.conflicts)


def test_a_file_that_was_not_given_is_known_by_its_name() -> None:
    reading = read([("start.sh", LAUNCH)])
    assert reading.job.parallel.strategy == "zero2"
    assert any("which was not given" in (fact.why or "") for fact in reading.evidence.facts)


def test_a_given_file_without_a_stage_leaves_nothing_of_its_name() -> None:
    reading = read([("start.sh", LAUNCH), ("zero2_offload.json", json.dumps({"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}))])
    assert not any("by the name of" in (fact.why or "") for fact in reading.evidence.facts)


def test_another_launcher_setting_is_no_word_on_the_stage() -> None:
    reading = read([("start.sh", LAUNCH), ("accelerate.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 4\n")])
    assert reading.job.parallel.strategy == "zero2"
