"""Every technique in every framework that can express it: lines that our own reader reads back as what was meant, or code of the technique's page."""

from __future__ import annotations

import re
from typing import Any

import pytest

from advisor import diagnose, knowledge
from advisor.frameworks.settings import settings
from advisor.job import read_job
from advisor.planner.agreeing import paths
from advisor.planner.lines import snippet, snippets
from advisor.planner.stepping import changed_lines
from advisor.run import resolve
from advisor.techniques import NotApplicable, all_techniques
from tests.techniques.in_frameworks import FRAMEWORKS, SCRIPT, applied, beyond, missing, read_back

BOUGHT = frozenset({"triage", "hardware"})  # what is done outside of the job's own files


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_lines_are_read_back_as_what_was_meant(framework: str) -> None:
    faults = []
    for name, technique in all_techniques().items():
        if technique.tier in BOUGHT or not technique.estimated:
            continue
        for before, after in applied(framework, name):
            lines = changed_lines(before, after, name)
            read = read_back(framework, lines)
            lost = {} if SCRIPT in lines else missing(framework, before, after, read)
            if lost or (more := beyond(after, read)):
                faults.append((name, before.job.parallel.strategy, lost, more if not lost else {}, dict(lines)))
    assert not faults, "\n".join(map(str, faults[:5]))


def test_snippets_are_known_frameworks_and_compile() -> None:
    known = {*FRAMEWORKS, "*", "custom", "deepspeed", "fsdp-qlora", "lightning", "timm", "diffusers", "torchvision", "images", "jax"}
    for name in knowledge.page_names("techniques"):
        for entry in knowledge.page("techniques", name)[0].get("code") or ():
            assert set(entry) <= {"for", "always", "lines", "when", "at"}
            assert set(entry["for"]) <= known, name
            if "at" not in entry and not set(entry["for"]) & {"axolotl", "llama-factory", "verl", "ms-swift", "openrlhf"}:
                compile(re.sub(r"<[a-z_]+\.[a-z_]+>", "7", entry["lines"]), name, "exec")


def test_no_derived_field_is_written() -> None:
    """ZeRO-3 in LLaMA-Factory: the optimizer is the user's; that the engine steps it otherwise is not a setting."""
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 2, "seq_len": 2048}, "framework": {"name": "llama-factory"},
           "hardware": {"gpu": "a100-80gb", "gpus_per_node": 8}, "parallel": {"strategy": "ddp", "replicate": 8}}  # fmt: skip
    before = resolve(read_job(job))
    after = all_techniques()["zero-3"].apply(before)
    assert not isinstance(after, type(None))
    lines = changed_lines(before, after, "zero-3")  # type: ignore[arg-type]
    assert lines == {"llama-factory": ("deepspeed: examples/deepspeed/ds_z3_config.json",), "deepspeed": ('{"zero_optimization": {"stage": 3}}',)}


@pytest.mark.parametrize(
    ("technique", "path"),
    [
        ("zero-1", "ds_z1_config.json"),
        ("zero-2", "examples/deepspeed/ds_z2_config.json"),
        ("offload-optimizer", "examples/deepspeed/ds_z2_offload_config.json"),
    ],
)
def test_llama_factory_names_a_deepspeed_config(technique: str, path: str) -> None:
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 2, "seq_len": 2048}, "framework": {"name": "llama-factory"},
           "hardware": {"gpu": "a100-80gb", "gpus_per_node": 8}, "method": {"kind": "full"}, "parallel": {"strategy": "ddp", "replicate": 8}}  # fmt: skip
    before = resolve(read_job(job))
    after = all_techniques()[technique].apply(before)
    assert not isinstance(after, NotApplicable)
    lines = changed_lines(before, after, technique)
    assert f"deepspeed: {path}" in lines["llama-factory"]
    assert "deepspeed" in lines
    assert "accelerate" not in lines


@pytest.mark.parametrize("named", [{}, {"optimizer": {"name": "adamw"}}])
def test_the_host_adam_has_no_line_of_its_own(named: dict[str, Any]) -> None:
    """DeepSpeed and accelerate put their CPU Adam in by themselves; an ``optimizer`` block would set learning rate and decay to DeepSpeed's defaults."""
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 2, "seq_len": 2048}, "framework": {"name": "trl"},
           "hardware": {"gpu": "a100-80gb", "gpus_per_node": 8}, "parallel": {"strategy": "zero3", "shard": 8}, **named}  # fmt: skip
    before = resolve(read_job(job))
    after = all_techniques()["offload-optimizer"].apply(before)
    assert not isinstance(after, NotApplicable)
    assert after.job.optimizer.name == "cpu-adam"
    lines = changed_lines(before, after, "offload-optimizer")
    assert lines["deepspeed"] == ('{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}',)
    assert not any("dam" in line for text in lines.values() for line in text)


def test_a_layer_is_written_only_where_it_is_in_force() -> None:
    before = read_job({"version": 1, "framework": {"name": "trl"}, "parallel": {"strategy": "ddp", "replicate": 8}})
    after = before.but(parallel={"strategy": "fsdp2", "shard": 8, "replicate": 1}, precision={"gradients": "fp32"})
    assert "deepspeed" not in settings(before, after, "trl")


def test_numbers_are_put_into_the_code() -> None:
    job = read_job({"version": 1, "framework": {"name": "hf-trainer"}, "batch": {"seq_len": 1024}})
    assert "max_length=1024" in snippet("shorter-sequence", job, False)[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_actions_have_lines_in_every_framework(framework: str) -> None:
    job = read_job({"version": 1, "framework": {"name": framework}, "hardware": {"gpus_per_node": 4}})
    for name in (
        "map-each-rank", "raise-memory-cap", "free-other-process", "reduce-host-memory", "upgrade", "empty-cache", "leave-headroom", "balance-experts",
        "bounded-shapes", "smaller-model",
    ):  # fmt: skip
        assert snippets(name, job, False), name
    if framework not in ("unsloth", "litgpt", "nemo"):  # of one card, or started by their own command and its settings
        assert snippets("correct-launch", job, False)
    memory = snippets("reduce-host-memory", job, False)
    assert {"docker", "docker compose", "kubernetes"} <= set(memory)
    assert "shm_size" in "\n".join(memory["docker compose"])


def test_the_shared_memory_of_a_container_has_lines_for_each_way_to_start_one() -> None:
    text = "RuntimeError: DataLoader worker (pid 42) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."
    made = diagnose([("log.txt", text), ("config.yaml", "base_model: Qwen/Qwen2.5-7B\nmicro_batch_size: 1\nsequence_len: 2048\ndatasets:\n- path: a\n")])
    assert made.plan is not None
    said = made.plan.steps[0].settings
    assert any("--shm-size" in line for line in said["docker"])
    assert any("shm_size: 16gb" in line for line in said["docker compose"])
    assert any("emptyDir" in line for line in said["kubernetes"])
    assert said["axolotl"] == ("dataloader_num_workers: 0",)


def test_a_group_smaller_than_the_job_says_how_many_hold_the_same() -> None:
    """accelerate, torchtune and torchtitan take one group that holds the same unless told otherwise, and then refuse so few cards."""
    wanted = {"hf-trainer": "dp_replicate_size: 2", "torchtune": "data_parallel_replicate_dim: 2", "torchtitan": "data_parallel_replicate_degree = 2"}
    for framework, line in wanted.items():
        pairs = [p for p in applied(framework, "hybrid-shard") if p[0].job.parallel.strategy == "fsdp2"]
        assert pairs, framework
        for before, after in pairs:
            assert any(line in said for text in changed_lines(before, after, "hybrid-shard").values() for said in text), framework


@pytest.mark.parametrize("version", ["4.57.1", "5.8.0", "5.10.0"])
@pytest.mark.parametrize("framework", ["hf-trainer", "trl", "llama-factory", "ms-swift", "axolotl", "accelerate"])
def test_no_key_is_said_twice_in_a_step(framework: str, version: str) -> None:
    """Dividing and moving out together: until transformers 5.10 one key, ``fsdp``, says both."""
    parallel = {"strategy": "ddp", "replicate": 8}
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 1, "seq_len": 4096}, "parallel": parallel, "objective": "sft",
           "hardware": {"gpu": "a100-40gb", "gpus_per_node": 8}, "framework": {"name": framework, "versions": {"transformers": version}}}  # fmt: skip
    start = resolve(read_job(job))
    divided = all_techniques()["fsdp"].apply(start)
    assert not isinstance(divided, NotApplicable)
    moved = all_techniques()["offload-parameters"].apply(divided)
    assert not isinstance(moved, NotApplicable)
    assert changed_lines(start, divided)
    for before, after in ((start, divided), (divided, moved), (start, moved)):
        said = [(layer, path) for layer, lines in changed_lines(before, after).items() for path, _ in paths(layer, lines)]
        assert len(said) == len(set(said)), said
