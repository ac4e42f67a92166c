"""Settings of a project that no table knows are read by their usual names; a known framework's own table is not overruled; a launcher's list."""

from __future__ import annotations

import pytest

from advisor.reading import read


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("cmd.sh", "python sft.py --per-device-batch-size 3 --attn sdpa\n", "batch.micro_batch", 3),
        ("cmd.sh", "python scripts/train.py --trainer.devices=1 --data.batch_size=8\n", "batch.micro_batch", 8),
        ("log.txt", "Namespace(accum_count=2, batch_size=8, layers=8, valid_batch_size=32)\n", "eval.micro_batch", 32),
        ("run.sh", "fairseq-train data --arch transformer_wmt_en_de --max-tokens 4000 --criterion label_smoothed_cross_entropy\n", "batch.token_budget", 4000),
        ("config.yaml", "trainer:\n  model: meta-llama/Llama-2-7b-hf\n  seq_len: 4096\n  micro_batch_size: 8\n", "model.name", "meta-llama/Llama-2-7b-hf"),
    ],
)
def test_usual_names(name: str, text: str, field: str, value: object) -> None:
    assert read([(name, text)]).job.get(field) == value


def test_sampling_tokens_are_no_budget_of_a_batch() -> None:
    assert read([("cmd.sh", "python serve.py --max-tokens 4000 --model x\n")]).job.batch.token_budget is None


def test_what_deepspeeds_launcher_prints_of_its_command() -> None:
    text = (
        "[ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', '-u', 'run_clm.py', '--local_rank=0', '--model_name_or_path', 'EleutherAI/gpt-j-6B', "
        "'--fp16', '--per_device_train_batch_size', '4'] exits with return code = -9\n"
    )
    reading = read([("log.txt", text)])
    assert (reading.job.batch.micro_batch, reading.job.model.name) == (4, "EleutherAI/gpt-j-6B")
    fact = reading.evidence.fact("batch.micro_batch")
    assert fact is not None and fact.where == "log.txt:1"
