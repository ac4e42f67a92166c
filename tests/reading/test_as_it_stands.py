"""What parses as it is keeps its characters."""

import json

import pytest

from advisor.reading import read


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("args.json", json.dumps({"per_device_train_batch_size": 4, "system_prompt": "You are “helpful”"}, ensure_ascii=False)),
        ("pasted", json.dumps({"per_device_train_batch_size": 4, "system_prompt": "You &quot;are&quot;"})),
        ("a.yaml", 'base_model: x/y\nsequence_len: 2048\nadapter: lora\nmicro_batch_size: 4\nprompt: "say “no”"\n'),
        ("train.py", "args = TrainingArguments(output_dir='o', per_device_train_batch_size=4, run_name='Don’t “stop”')\n"),
    ],
)
def test_a_curled_quote_within_a_string_breaks_no_config(name: str, text: str) -> None:
    assert read([(name, text)]).job.batch.micro_batch == 4


def test_a_script_that_a_browser_changed_is_read_all_the_same() -> None:
    text = "args = TrainingArguments(output_dir=‘o’, per_device_train_batch_size=4, run_name=“x”)\n"
    assert read([("train.py", text)]).job.batch.micro_batch == 4
