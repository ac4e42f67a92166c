"""Filling what a job leaves open: written values stay, each filled value has its reason, and the reason is the framework's."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from advisor import reading
from advisor.arithmetic import estimate
from advisor.evidence import Evidence, Failure
from advisor.evidence import Fact as Read
from advisor.frameworks.derive import AS_LOADED
from advisor.job import Job, read_job
from advisor.knowledge import folder
from advisor.resolving.contradictions import contradictions
from advisor.run import Run, resolve

LLAMA = {"name": "meta-llama/Llama-3.1-8B"}


def run(**sections: Any) -> Run:
    return resolve(read_job({"version": 1, "model": LLAMA, **sections}))


def measured() -> list[Any]:
    jobs = []
    for file in sorted((folder("knowledge") / "measurements").glob("*.yaml")):
        records = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
        jobs += [pytest.param(r["job"], id=r["id"]) for r in records if isinstance(r, dict) and "job" in r][::5]
    return jobs


@pytest.mark.parametrize("written", measured())
def test_what_is_written_is_never_changed_and_the_rest_is_valid(written: dict[str, Any]) -> None:
    job = read_job(written)
    resolved = resolve(job).job
    for section, content in job.to_dict().items():
        if isinstance(content, dict):
            filled = resolved.to_dict()[section]
            assert {k: filled[k] for k in content} == content
        else:
            assert resolved.to_dict()[section] == content
    assert read_job(resolved.to_dict()) == resolved


def test_every_filled_value_has_a_fact_with_its_reason() -> None:
    resolved = run(framework={"name": "trl"}, objective="sft")
    for path, fact in resolved.facts.items():
        assert resolved.job.get(path) == fact.value, path
        assert fact.kind != "default" or fact.where, path
        assert fact.kind not in ("assumed", "inferred") or fact.why, path


def test_a_change_resolves_anew_what_follows_from_it() -> None:
    full = run(framework={"name": "trl"}, objective="dpo", method={"kind": "full"}, batch={"micro_batch": 1})
    assert full.job.reference == "copy"
    adapted = full.but(method={"kind": "lora"})
    assert adapted.job.reference == "adapter-off"
    assert adapted.job.batch.micro_batch == 1
    assert adapted.job.method.rank is not None
    pinned = run(framework={"name": "trl"}, objective="dpo", reference="copy").but(method={"kind": "lora"})
    assert pinned.job.reference == "copy"


def test_an_unrelated_change_moves_nothing_else() -> None:
    before = run(framework={"name": "hf-trainer"}, parallel={"strategy": "zero2", "shard": 4})
    after = before.but(batch={"gradient_accumulation": 4})
    assert after.job.but(batch={"gradient_accumulation": before.job.batch.gradient_accumulation}) == before.job


def test_what_decides_and_is_open_is_missing() -> None:
    assert resolve(Job()).missing == ("model.name", "batch.micro_batch", "batch.seq_len")
    assert resolve(Job().but(model={"name": "nobody/nothing"})).missing[0] == "model.config"
    assert run(framework={"name": "axolotl"}).missing == ()
    assert run(batch={"token_budget": 4096, "seq_len": 4096}).missing == ()


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        # autocast over fp32 weights: gradients and states in fp32, no master
        (
            {"framework": {"name": "hf-trainer", "versions": {"transformers": "4.48.1"}}, "precision": {"compute": "bf16"}},
            {"precision.weights": "fp32", "precision.mixed": "autocast", "precision.master": "none", "optimizer.states": "fp32"},
        ),
        # from transformers 5 the checkpoint's dtype: bf16 Adam without a master
        (
            {"framework": {"name": "hf-trainer", "versions": {"transformers": "5.2.0"}}, "precision": {"compute": "bf16"}},
            {"precision.weights": "bf16", "precision.gradients": "bf16", "optimizer.states": "bf16"},
        ),
        # a model given to TRL as a name is fp32 even then
        ({"framework": {"name": "trl", "versions": {"trl": "1.16", "transformers": "5.2.0"}}}, {"precision.weights": "fp32", "precision.compute": "bf16"}),
        # DeepSpeed: 16-bit weights and gradients, fp32 masters and states; adapters are cast with the module
        (
            {"framework": {"name": "trl"}, "precision": {"compute": "bf16"}, "method": {"kind": "lora"}, "parallel": {"strategy": "zero2", "shard": 8}},
            {
                "precision.mixed": "deepspeed",
                "precision.master": "fp32",
                "precision.gradients": "bf16",
                "optimizer.states": "fp32",
                "method.adapter_dtype": "bf16",
            },
        ),
        # accelerate widens trained FSDP shards to fp32, and reduces in the compute dtype
        (
            {"framework": {"name": "hf-trainer"}, "precision": {"compute": "bf16"}, "load": {"dtype": "bf16"}, "parallel": {"strategy": "fsdp2", "shard": 8}},
            {"precision.weights": "fp32", "precision.mixed": "fsdp", "precision.reduce": "bf16", "optimizer.states": "fp32"},
        ),
        # Megatron: fp32 main gradients
        ({"framework": {"name": "megatron-lm"}, "precision": {"compute": "bf16"}}, {"precision.gradients": "fp32", "precision.master": "fp32"}),
        # torchtune trains in the weights' own dtype
        ({"framework": {"name": "torchtune"}}, {"precision.weights": "bf16", "precision.mixed": "none", "optimizer.states": "bf16"}),
        # LLaMA-Factory casts what it trains to fp32
        ({"framework": {"name": "llama-factory"}, "method": {"kind": "full"}, "precision": {"compute": "bf16"}}, {"precision.weights": "fp32"}),
        # verl holds the actor in fp32 shards
        ({"framework": {"name": "verl"}, "objective": "grpo"}, {"precision.weights": "fp32", "precision.reduce": "fp32", "parallel.strategy": "fsdp1"}),
        # a V100 has no bf16
        ({"hardware": {"gpu": "v100-32gb"}}, {"precision.compute": "fp16"}),
    ],
)
def test_dtypes(sections: dict[str, Any], expected: dict[str, Any]) -> None:
    job = run(**sections).job
    assert {path: job.get(path) for path in expected} == expected


def test_versions_decide_and_an_unknown_one_gives_a_range() -> None:
    def checkpointing(**versions: str) -> Any:
        return run(framework={"name": "trl", "versions": versions}).facts["activations.checkpointing"]

    assert checkpointing(trl="1.16.0").value == "full"
    assert checkpointing(trl="0.16.1").value == "none"
    assert checkpointing(transformers="4.45.2").value == "none", "TRL 0.22 needs transformers 4.55"
    unknown = checkpointing()
    assert (unknown.value, unknown.alternatives) == ("full", ("none",))
    assert unknown.kind == "default"


def test_groups_follow_from_the_gpus() -> None:
    p = run(parallel={"strategy": "fsdp2", "tensor": 2}, hardware={"gpus_per_node": 8, "nodes": 2}).job.parallel
    assert (p.shard, p.replicate) == (8, 1)
    p = run(parallel={"strategy": "ddp"}, hardware={"gpus_per_node": 4}).job.parallel
    assert (p.shard, p.replicate) == (1, 4)
    assert run(parallel={"strategy": "zero3", "shard": 16}).job.hardware.gpus_per_node == 16
    assert run(hardware={"gpus_per_node": 1}).job.parallel.strategy == "none"
    assert run(hardware={"gpus_per_node": 4}).job.parallel.strategy == "ddp"


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_zero_steps_an_fp32_copy_of_pure_16_bit_weights(strategy: str) -> None:
    pure = {"weights": "bf16", "compute": "bf16", "mixed": "none"}
    job = run(parallel={"strategy": strategy, "shard": 4}, precision=pure, framework={"name": "llama-factory"}, method={"kind": "full"}).job
    assert (job.precision.master, job.optimizer.states, job.precision.gradients) == ("fp32", "fp32", "bf16")
    alone = run(precision=pure, framework={"name": "llama-factory"}, method={"kind": "full"}).job
    assert (alone.precision.master, alone.optimizer.states) == ("none", "bf16")
    written = run(
        parallel={"strategy": strategy, "shard": 4}, precision={**pure, "master": "none"}, framework={"name": "llama-factory"}, method={"kind": "full"}
    ).job
    assert written.precision.master == "none"  # bf16_master_weights_and_grads


def test_ranks_that_were_seen_count() -> None:
    evidence = Evidence(failures=tuple(Failure("gpu-memory", "log.txt:1", "", rank=rank) for rank in (0, 3)))
    resolved = resolve(Job().but(model=LLAMA, parallel={"strategy": "zero3"}), evidence)
    assert resolved.job.parallel.shard == 4
    assert resolved.facts["hardware.gpus_per_node"].kind == "inferred"


def test_auto_buckets_come_from_the_models_width() -> None:
    evidence = Evidence(
        seen_keys=(("ds.json:8", "zero_optimization.reduce_bucket_size", "auto"), ("ds.json:9", "zero_optimization.stage3_prefetch_bucket_size", "auto"))
    )
    job = Job().but(model=LLAMA, parallel={"strategy": "zero3", "shard": 8}, framework={"name": "trl"})
    auto = resolve(job, evidence)
    assert auto.job.parallel.bucket_elements == 4096 * 4096
    assert auto.job.parallel.prefetch_elements == int(0.9 * 4096 * 4096)
    assert auto.but(batch={"micro_batch": 2}).job.parallel.bucket_elements == 4096 * 4096
    assert resolve(job).job.parallel.bucket_elements == 500_000_000


def test_a_dtype_that_only_repeats_the_load_gives_way() -> None:
    facts = (
        Read("load.dtype", "bf16", "read", where="a.py:1"),
        Read("precision.weights", "bf16", "inferred", where="a.py:1", why=AS_LOADED),
    )
    job = Job().but(model=LLAMA, load={"dtype": "bf16"}, precision={"weights": "bf16", "compute": "bf16"}, framework={"name": "trl"})
    sharded = resolve(job.but(parallel={"strategy": "fsdp2", "shard": 8}), Evidence(facts=facts))
    assert sharded.job.precision.weights == "fp32"
    assert sharded.but(batch={"micro_batch": 2}).job.precision.weights == "fp32"
    assert resolve(job, Evidence(facts=facts)).job.precision.weights == "bf16"


def test_optional_sections_stay_absent() -> None:
    job = run().job
    assert (job.load, job.eval, job.save, job.resume, job.rollout) == (None, None, None, None, None)
    evaluated = run(eval={}, framework={"name": "hf-trainer"}).job.eval
    assert evaluated is not None
    assert (evaluated.micro_batch, evaluated.accumulate, evaluated.keeps) == (8, "device", "logits")


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        ({"hardware": {"gpu": "v100-32gb"}, "precision": {"compute": "bf16"}}, "no bf16"),
        ({"method": {"kind": "full", "base": "nf4"}}, "no gradients"),
        ({"parallel": {"strategy": "zero3", "shard": 16}, "hardware": {"gpus_per_node": 8, "nodes": 1}}, "more GPUs"),
        ({"parallel": {"strategy": "fsdp2", "context": 8, "shard": 4}}, "parallel.context"),
        ({"parallel": {"strategy": "zero2", "shard": 4}, "offload": {"parameters": "cpu"}}, "below stage 3"),
        ({"reference": "adapter-off", "method": {"kind": "full"}}, "nothing to switch off"),
        ({"framework": {"name": "torchtune"}, "optimizer": {"in_backward": True}, "batch": {"gradient_accumulation": 8}}, "torchtune stops with an error"),
        ({"batch": {"seq_len": 10_000_000}}, "max_position_embeddings"),
    ],
)
def test_contradictions_are_sentences(sections: dict[str, Any], word: str) -> None:
    found = contradictions(run(**sections))
    assert any(word in sentence for sentence in found), found


def test_a_sound_job_has_none() -> None:
    assert contradictions(run(framework={"name": "axolotl"}, hardware={"gpu": "a100-80gb", "gpus_per_node": 1})) == ()


def test_resolving_is_quick() -> None:
    job = read_job({"version": 1, "model": LLAMA, "framework": {"name": "trl"}, "parallel": {"strategy": "zero3", "shard": 8}})
    resolve(job)
    best = min(_seconds(job) for _ in range(60))
    assert best < 0.001, f"{best * 1e3:.2f} ms"  # 0.2 ms on an idle core; other work shares the cores of a test run


def _seconds(job: Job) -> float:
    started = time.perf_counter()
    resolve(job)
    return time.perf_counter() - started


def test_passes_of_a_step_follow_from_the_batch_of_all_ranks() -> None:
    hardware = {"gpu": "h100-80gb", "gpus_per_node": 8}
    parallel = {"strategy": "megatron-distributed", "tensor": 2}
    flat = resolve(Job().but(batch={"micro_batch": 2, "global_batch": 64}, parallel=parallel, hardware=hardware))
    assert flat.job.batch.gradient_accumulation == 64 // (2 * 4)
    piped = resolve(Job().but(batch={"micro_batch": 2, "global_batch": 64}, parallel={**parallel, "pipeline": 2}, hardware=hardware))
    assert (piped.job.parallel.microbatches, piped.job.batch.gradient_accumulation) == (64 // (2 * 2), 1)
    shared = resolve(Job().but(batch={"micro_batch": 2, "global_batch": 64}, parallel={**parallel, "context": 2}, hardware=hardware))
    assert shared.job.batch.gradient_accumulation == 64 // (2 * 2)  # ranks that share a sequence see the same samples
    halved = flat.but(batch={"micro_batch": 1})
    assert halved.job.batch.gradient_accumulation == 16


def test_a_batch_that_does_not_multiply_out_is_said() -> None:
    job = Job().but(
        batch={"micro_batch": 2, "gradient_accumulation": 4, "global_batch": 100},
        parallel={"strategy": "zero2"},
        hardware={"gpu": "h100-80gb", "gpus_per_node": 8},
    )
    assert any("100 sequences" in sentence for sentence in contradictions(resolve(job)))
    assert not any("sequences is asked" in sentence for sentence in contradictions(resolve(job.but(batch={"global_batch": 64}))))


def test_megatron_divides_experts_as_everything_else_unless_told() -> None:
    parallel = {"strategy": "megatron-distributed", "tensor": 2, "expert": 2}
    hardware = {"gpu": "h100-80gb", "gpus_per_node": 8}
    assert run(parallel=parallel, hardware=hardware, framework={"name": "megatron-lm"}).job.parallel.expert_tensor == 2
    assert run(parallel={**parallel, "expert_tensor": 1}, hardware=hardware, framework={"name": "megatron-lm"}).job.parallel.expert_tensor == 1
    assert run(parallel={"strategy": "fsdp2", "tensor": 2, "expert": 2}, hardware=hardware, framework={"name": "torchtitan"}).job.parallel.expert_tensor == 1


@pytest.mark.parametrize(
    ("framework", "parallel", "source"),
    [
        ("litgpt", {}, "litgpt"),
        ("torchtune", {}, "torchtune"),
        ("torchtitan", {}, "torchtitan"),
        ("megatron-lm", {}, "megatron"),
        ("verl", {"strategy": "megatron-distributed"}, "megatron"),
        ("verl", {"strategy": "fsdp2"}, None),
        ("trl", {}, None),
    ],
)
def test_the_trainers_own_modules_run_where_it_has_some(framework: str, parallel: dict[str, Any], source: str | None) -> None:
    assert run(framework={"name": framework}, parallel=parallel).job.model.source == source


def test_litgpt_shards_with_several_devices_and_not_with_one() -> None:
    one, four = (run(framework={"name": "litgpt"}, hardware={"gpu": "a100-80gb", "gpus_per_node": n}) for n in (1, 4))
    assert (one.job.parallel.strategy, four.job.parallel.strategy, four.job.activations.checkpointing) == ("none", "fsdp1", "full")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq-int4"),
        ("TheBloke/Llama-2-70B-GPTQ", "gptq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq-int4"),
        ("unsloth/llama-3-8b-bnb-4bit", "nf4"),
        ("unsloth/Llama-3.2-1B-unsloth-bnb-4bit", "nf4"),
        ("Qwen/Qwen2.5-7B-Instruct", "none"),
        ("acme/hawq-7b", "none"),
    ],
)
def test_a_checkpoint_that_is_stored_quantised_says_so_in_its_name(name: str, base: str) -> None:
    resolved = resolve(Job().but(model={"name": name}, method={"kind": "lora"}))
    assert resolved.job.method.base == base
    assert resolve(Job().but(model={"name": name}, method={"base": "none"})).job.method.base == "none"  # what is written stays


def test_a_reward_model_has_no_logits_over_the_vocabulary() -> None:
    common: dict[str, Any] = {"method": {"kind": "lora", "rank": 8}, "batch": {"micro_batch": 1, "seq_len": 512}, "hardware": {"gpu": "a100-80gb"}}
    reward, tuned = (run(objective=o, framework={"name": "trl"}, **common) for o in ("reward", "sft"))
    assert reward.job.model.classes == 1
    assert "logits" in estimate(tuned).by_part("loss.forward") and "logits" not in estimate(reward).by_part("loss.forward")
    assert run(objective="reward", framework={"name": "llama-factory"}, **common).job.model.classes is None  # its value head stands beside the language head


@pytest.mark.parametrize(
    ("gpu", "compute", "use"), [("a100-80gb", "fp8", "bf16"), ("h100-80gb", "mxfp8", "bf16"), ("t4-16gb", "bf16", "fp16"), ("t4-16gb", "fp8", "fp16")]
)
def test_a_dtype_that_the_card_lacks_is_replaced_by_one_that_it_has(gpu: str, compute: str, use: str) -> None:
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "hardware": {"gpu": gpu}, "precision": {"compute": compute}}
    said = [note for note in contradictions(resolve(read_job(job))) if "no " + compute in note]
    assert len(said) == 1 and said[0].endswith(f"Use {use}.")


@pytest.mark.parametrize(
    ("name", "transformers", "weights", "open_to"),
    [
        ("openai-community/gpt2", "4.50.0", "fp32", ()),
        ("openai-community/gpt2", "5.24.0", "fp32", ()),  # its checkpoint is fp32
        ("google-bert/bert-base-uncased", None, "fp32", ()),
        ("allenai/OLMo-2-1124-7B", "5.24.0", "fp32", ()),
        ("allenai/OLMo-2-1124-7B-Instruct", "5.24.0", "bf16", ()),  # a variant's checkpoint is its own
        ("Qwen/Qwen2.5-0.5B", "5.24.0", "bf16", ()),
        ("Qwen/Qwen2.5-0.5B", "4.50.0", "fp32", ("bf16",)),
        ("Qwen/Qwen2.5-0.5B", None, "bf16", ("fp32",)),
    ],
)
def test_weights_without_a_named_dtype_are_those_of_the_checkpoint_from_transformers_5_on(
    name: str, transformers: str | None, weights: str, open_to: tuple[str, ...]
) -> None:
    versions = {"transformers": transformers} if transformers else {}
    found = run(model={"name": name}, framework={"name": "hf-trainer", "versions": versions}, precision={"mixed": "autocast", "compute": "bf16"})
    assert (found.job.precision.weights, found.job.precision.compute, found.job.precision.mixed) == (weights, "bf16", "autocast")
    assert found.facts["precision.weights"].alternatives == open_to
    assert run(model={"name": name}, framework={"name": "hf-trainer", "versions": versions}, precision={"mixed": "none"}).job.precision.compute == weights


def test_a_frozen_base_of_an_fp32_checkpoint_is_sharded_in_fp32() -> None:
    parallel, method = {"strategy": "fsdp2", "shard": 2}, {"kind": "lora"}
    found = run(model={"name": "openai-community/gpt2"}, framework={"name": "hf-trainer"}, parallel=parallel, method=method)
    assert found.job.precision.weights == "fp32"
    assert run(framework={"name": "hf-trainer", "versions": {"transformers": "5.24.0"}}, parallel=parallel, method=method).job.precision.weights == "bf16"


@pytest.mark.parametrize(("name", "recalled"), [("openai-community/gpt2", True), ("allenai/OLMo-2-1124-7B", False)])
def test_a_dtype_of_a_checkpoint_that_was_only_recalled_says_so(name: str, recalled: bool) -> None:
    script = f"from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\nmodel = AutoModelForCausalLM.from_pretrained({name!r})\n"
    fact = resolve(reading.read([("train.py", script)]).job).facts["precision.weights"]
    assert fact.value == "fp32"
    assert ("recalled" in (fact.why or "")) is recalled
