"""Settings that a run prints of itself, by whoever prints them, beside everything else that a log holds."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.reading import read
from advisor.reading.dumped import dumps

AROUND = "Loading data ...\n{}\nNumber of trainable parameters: 3,407,872\niter 1 step 0: loss 1.6612, iter time: 1190.33ms\n"
MEGATRON = """\
[default0]:------------------------ arguments ------------------------
[default0]:  bf16 ............................................ True
[default0]:  hidden_size ..................................... 4096
[default0]:  micro_batch_size ................................ 2
[default0]:  num_attention_heads ............................. 32
[default0]:  num_layers ...................................... 32
[default0]:  recompute_granularity ........................... full
[default0]:  seq_length ...................................... 4096
[default0]:  tensor_model_parallel_size ...................... 2
[default0]:  untie_embeddings_and_output_weights ............. False
[default0]:  world_size ...................................... 16
[default0]:-------------------- end of arguments ---------------------"""
LITGPT = "{'devices': 1, 'learning_rate': 0.0003, 'batch_size': 128, 'micro_batch_size': 4, 'lora_r': 8, 'lora_alpha': 16, 'lora_dropout': 0.05}"
VERL = """\
(TaskRunner pid=1234) {'actor_rollout_ref': {'actor': {'ppo_micro_batch_size_per_gpu': 4},
(TaskRunner pid=1234)                        'model': {'path': 'Qwen/Qwen2.5-7B', 'enable_gradient_checkpointing': True},
(TaskRunner pid=1234)                        'rollout': {'gpu_memory_utilization': 0.6, 'name': 'vllm'}},
(TaskRunner pid=1234)  'data': {'max_prompt_length': 1024, 'max_response_length': 4096}}"""
JSON = '[rank0]: cfg: {"model": "meta-llama/Llama-3.1-8B", "per_device_train_batch_size": 4, "max_length": 4096, "bf16": true}'
ARGS = "2026-01-12 10:11:12 INFO train.py:31 args = {'model_name_or_path': 'gpt2', 'per_device_train_batch_size': 4, 'bf16': True, 'note': \"it's {fine}\"}"


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (MEGATRON, {"batch.micro_batch": 2, "batch.seq_len": 4096, "parallel.tensor": 2, "activations.checkpointing": "full", "hardware.gpus_per_node": 16}),
        (LITGPT, {"batch.micro_batch": 4, "method.rank": 8, "hardware.gpus_per_node": 1}),
        (VERL, {"model.name": "Qwen/Qwen2.5-7B", "batch.seq_len": 5120, "rollout.memory_fraction": 0.6}),
        (JSON, {"model.name": "meta-llama/Llama-3.1-8B", "batch.micro_batch": 4, "batch.seq_len": 4096}),
        (ARGS, {"model.name": "gpt2", "batch.micro_batch": 4, "precision.compute": "bf16"}),
    ],
    ids=["megatron", "litgpt", "verl", "json", "vars"],
)
def test_what_a_run_prints_of_its_settings_is_read(printed: str, expected: dict[str, Any]) -> None:
    from advisor.run import resolve

    found = read([("log.txt", AROUND.format(printed))])
    job = resolve(found.job, found.evidence).job
    assert {path: job.get(path) for path in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 0.42, 'grad_norm': 1.0, 'learning_rate': 1e-5, 'epoch': 0.1}",
        "{'eval_loss': 0.4, 'batch_size': 8, 'eval_runtime': 3.0}",
        "config: {'batch_size': 8, 'never closed",
        "You could for example try with other settings: {'micro_batch_size': 1, 'lora_r': 8, 'max_seq_length': 512}",
        "Settings like {'micro_batch_size': 1, 'lora_r': 8, 'max_seq_length': 512} are what I would use.",
        "config: {__import__('os'): 1, 'a': 2, 'b': 3}",
        "config: {'a': __import__('os').system('true'), 'b': 1, 'c': 2}",
        "config: " + "{'a': " * 3000 + "1" + "}" * 3000,
    ],
    ids=["step", "evaluation", "cut", "advice", "an example in a sentence", "code as a key", "code as a value", "deep"],
)
def test_what_is_no_mapping_of_settings_is_left(line: str) -> None:
    assert not list(dumps(AROUND.format(line)))


def test_a_log_of_mappings_is_looked_at_within_bounds() -> None:
    assert len(list(dumps("{'a': 1, 'b': 2, 'c': 3}\n" * 5000))) <= 40


@pytest.mark.parametrize("text", ["config: {'" * 50_000, "x\nconfig: {'" * 50_000, "x\n{'a': [" * 50_000, "------- arguments -------\n" * 20_000])
def test_hostile_logs_end_within_bounds(text: str) -> None:
    assert not list(dumps(text))
