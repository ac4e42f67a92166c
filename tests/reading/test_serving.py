"""A server that does not start: no training job, its own flags, and what its log says is left for the cache."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read

LOG = (
    "INFO 01-20 10:00:20 worker.py:241] the current vLLM instance can use total_gpu_memory (39.39GiB) x gpu_memory_utilization (0.90) = 35.45GiB\n"
    "INFO 01-20 10:00:20 worker.py:241] model weights take 27.56GiB; the rest of the memory reserved for KV Cache is 3.42GiB.\n"
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (18672). Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n"
)
SERVE = "$ vllm serve Qwen/Qwen2.5-14B-Instruct --gpu-memory-utilization 0.9\n"


def test_a_server_is_no_training_job() -> None:
    report = diagnose([("log.txt", SERVE + LOG)])
    assert report.evidence.failure is not None and dict(report.evidence.failure.details)["cache_available_gib"] == 3.42
    assert report.run is not None and report.run.job.rollout is None and not report.assumed
    first = report.plan.steps[0]
    assert first.settings == {"vllm": ("--max-model-len 18672",)} and "3.42 GiB" in first.why


def test_a_trainers_engine_keeps_its_settings() -> None:
    script = "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(use_vllm=True, vllm_mode='colocate', per_device_train_batch_size=4)\n"
    report = diagnose([("train.py", script), ("log.txt", LOG)])
    assert report.run is not None and report.run.job.rollout is not None and report.run.job.rollout.memory_fraction == 0.9 and report.assumed
    lines = [line for step in report.plan.steps for text in step.settings.values() for line in text]
    assert not any(line.startswith("--max-model-len") for line in lines)


def test_a_server_beside_a_trainer_is_the_trainers() -> None:
    launch = "CUDA_VISIBLE_DEVICES=0 trl vllm-serve --model Qwen/Qwen2.5-14B-Instruct\n"
    assert not any(key == "program.serves" for _, key, _ in read([("log.txt", launch + LOG)]).evidence.seen_keys)


@pytest.mark.parametrize(
    ("command", "engine"),
    [(SERVE, "vllm"), ("python -m vllm.entrypoints.openai.api_server --model x/y\n", "vllm"), ("python3 -m sglang.launch_server --model x/y\n", "sglang")],
)
def test_whose_server(command: str, engine: str) -> None:
    assert ("log.txt:1", "program.serves", engine) in read([("log.txt", command + LOG)]).evidence.seen_keys
