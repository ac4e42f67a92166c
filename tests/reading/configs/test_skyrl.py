"""SkyRL: fp32 masters on purpose, engines that sleep as actors of their own, and Megatron's degrees where the strategy stands elsewhere."""

from __future__ import annotations

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.report import Report

COLOCATED = (
    "python -m skyrl_train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-8B trainer.placement.colocate_all=true "
    "trainer.micro_train_batch_size_per_gpu=1"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 2.00 GiB is free. "
    "Of the allocated memory 60.00 GiB is allocated by PyTorch, and 16.00 GiB is reserved by PyTorch but unallocated."
)


def _report(config: str) -> Report:
    return diagnose([("run.sh", config), ("error.txt", OOM)])


def test_fp32_masters_are_no_forgotten_dtype() -> None:
    report = _report(COLOCATED)
    assert report.run is not None
    assert report.run.job.precision.weights == "fp32"
    assert "default-fp32-load" not in {finding.cause for finding in report.findings}


def test_colocated_engines_sleep_and_the_trainer_may_still_grow_its_segments() -> None:
    report = _report(COLOCATED)
    assert report.run is not None and report.run.job.rollout is not None
    assert report.run.job.rollout.sleep == "level-2"
    assert "expandable-segments" in {step.technique for step in report.plan.steps}


def test_a_degree_of_megatrons_names_the_strategy_unless_one_is_written() -> None:
    degree = " trainer.policy.megatron_config.tensor_model_parallel_size=2"
    assert read([("run.sh", COLOCATED + degree)]).job.parallel.strategy == "megatron-distributed"
    assert read([("run.sh", COLOCATED + degree + " trainer.strategy=fsdp2")]).job.parallel.strategy == "fsdp2"
    assert read([("run.sh", COLOCATED + degree.replace("=2", "=1"))]).job.parallel.strategy == "fsdp2"
