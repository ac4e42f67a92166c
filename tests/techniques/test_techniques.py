"""Every technique of the vocabulary: registered, with a page, total on all jobs, and true to what it promises."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import deviation as dev
from advisor import knowledge
from advisor.arithmetic import estimate
from advisor.job import Job, read_job
from advisor.ledger import PARTS
from advisor.planner.lines import changed_lines
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques
from tests.techniques import zoo

NAMES = """
map-each-rank free-other-process reduce-host-memory raise-memory-cap load-sharded shard-before-move drop-duplicate-layout share-rollout-weights rollout-sleep
rollout-fraction staged-wake-up separate-rollout precompute-reference adapter-reference offload-reference reduce-modules-to-save tie-embeddings
wrap-frozen-apart sync-each-microbatch narrow-gradient-buffer detach-retained disable-decode-cache eval-on-host sharded-save resume-on-host merge-on-host
load-in-16-bit keep-kbit-narrow keep-wrapper-narrow apply-quantization drop-fp8 restore-flash-attention restore-fused-loss isolate-widening
expandable-segments bounded-shapes fused-optimizer zero-1 zero-2 zero-3 fsdp hybrid-shard tensor-parallel sequence-parallel context-parallel ulysses
pipeline-parallel expert-parallel offload-optimizer offload-parameters offload-nvme smaller-buckets limit-all-gathers eight-bit-optimizer paged-optimizer
factored-optimizer momentum-only-optimizer smaller-rank optimizer-in-backward galore lora dora qlora double-quantization fp8-training fused-linear-loss
chunked-loss gradient-checkpointing selective-checkpointing repair-checkpointing offload-activations smaller-micro-batch shorter-sequence sequence-packing
cap-vision-tokens smaller-eval-batch cap-longest-batch fused-kernels tiled-mlp balance-experts upgrade correct-launch empty-cache
exclude-vocabulary-layers less-checkpointing less-offload larger-micro-batch leave-headroom more-gpus larger-gpu smaller-model
wrap-each-block
"""  # ids of the vocabulary, version 1; the last line: those that this project added
VOCABULARY = NAMES.split()
SEVEN = ("qlora", "dora", "galore", "fsdp", "zero-3", "gradient-checkpointing", "restore-flash-attention", "fp8-training", "context-parallel")


def run(**sections: Any) -> Run:
    job: dict[str, Any] = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 4, "seq_len": 2048}}
    for name, content in sections.items():
        job[name] = {**job.get(name, {}), **content} if isinstance(content, dict) else content
    return resolve(read_job(job))


def apply(name: str, before: Run) -> Run:
    after = all_techniques()[name].apply(before)
    assert isinstance(after, Run), after
    return after


def refusal(name: str, before: Run) -> str:
    after = all_techniques()[name].apply(before)
    assert isinstance(after, NotApplicable), f"{name} was applied"
    return after.reason


def samples(job: Job) -> int:
    """Samples a step over all ranks."""
    b, p = job.batch, job.parallel
    passes = (b.gradient_accumulation or 1) * ((p.microbatches or 1) if (p.pipeline or 1) > 1 else 1)
    return (b.micro_batch or 1) * passes * (p.shard or 1) * (p.replicate or 1) // (p.context or 1)


def test_every_technique_of_the_vocabulary_is_registered() -> None:
    assert set(all_techniques()) == set(VOCABULARY)


@pytest.mark.parametrize("name", VOCABULARY)
def test_page(name: str) -> None:
    front, body = knowledge.page("techniques", name)
    technique = all_techniques()[name]
    assert set(front) == {"title", "tier", "acts_on", "costs", "exact", "alters_learning", "conflicts", "needs", "sources"} | (front.keys() & {"code"})
    assert (front["tier"], front["exact"], front["alters_learning"]) == (technique.tier, technique.exact, technique.alters_learning)
    assert set(front["acts_on"]) <= set(PARTS)
    assert set(front["conflicts"]) <= set(VOCABULARY)
    assert front["sources"]
    assert all(set(s) == {"title", "where", "read"} for s in front["sources"])
    assert "## What can go wrong" in body
    assert "## How to see that it worked" in body
    for snippet in re.findall(r"```python\n(.*?)```", body, re.DOTALL):
        compile(snippet, name, "exec")
    if name in SEVEN:
        assert len(body.split()) > 150, "one of the seven methods of training on limited hardware is treated in full"


def test_no_page_without_a_technique() -> None:
    assert set(knowledge.page_names("techniques")) == set(VOCABULARY)


@pytest.mark.parametrize("name", VOCABULARY)
def test_applies_or_says_why_not_on_every_job(name: str) -> None:
    for before in (*zoo.written(), *zoo.measured(), *zoo.deviating()):
        after = all_techniques()[name].apply(before)
        if isinstance(after, NotApplicable):
            assert len(after.reason) > 15
            assert not after.reason.endswith(".")
        else:
            assert after.stated == before.stated
            read_job(after.job.to_dict())  # the changed job is a job


@pytest.mark.parametrize("name", [n for n in VOCABULARY if n not in ("more-gpus", "shorter-sequence", "cap-longest-batch", "separate-rollout")])
def test_the_effective_batch_stays(name: str) -> None:
    for before in (*zoo.written(), *zoo.measured()):
        after = all_techniques()[name].apply(before)
        if isinstance(after, Run):
            assert samples(after.job) == samples(before.job), before.job.name


@given(micro=st.integers(2, 64), accumulation=st.integers(1, 64))
@settings(max_examples=25, deadline=None)
def test_a_smaller_micro_batch_accumulates_more(micro: int, accumulation: int) -> None:
    before = run(batch={"micro_batch": micro, "gradient_accumulation": accumulation})
    after = apply("smaller-micro-batch", before)
    assert (after.job.batch.micro_batch or 0) < micro
    assert samples(after.job) == samples(before.job)


@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        ("repair-checkpointing", dev.ineffective("activations.checkpointing", cause="checkpointing-broken")),
        ("restore-flash-attention", dev.ineffective("activations.attention", cause="attention-fallback")),
        ("load-in-16-bit", dev.widened("precision.weights", "fp32", cause="default-fp32-load")),
        ("detach-retained", dev.retained("activations", 3, cause="retained-graph")),
        ("free-other-process", dev.foreign(20 << 30, cause="other-process")),
        ("drop-duplicate-layout", dev.extra("weights", dtype="bf16", cause="duplicate-layout")),
        ("apply-quantization", dev.ineffective("method.base", cause="quantization-not-applied")),
        ("sharded-save", dev.extra("weights", dtype="fp32", phases=("save",), cause="save-gather")),
    ],
)
def test_a_cure_takes_its_deviation_away(name: str, deviation: dev.Deviation) -> None:
    before = run(framework={"name": "hf-trainer"}, activations={"checkpointing": "full", "attention": "sdpa"}, precision={"weights": "bf16"})
    assert apply(name, before.deviating(deviation)).deviations == ()


def test_conditions_of_card_framework_and_version() -> None:
    hf = {"name": "hf-trainer"}
    assert "8.9" in refusal("fp8-training", run(hardware={"gpu": "a100-80gb"}, framework=hf))
    assert isinstance(all_techniques()["fp8-training"].apply(run(hardware={"gpu": "h100-80gb"}, framework=hf)), Run)
    assert "fused kernel" in refusal(
        "restore-flash-attention", run(hardware={"gpu": "t4-16gb"}, activations={"attention": "eager"}, precision={"compute": "bf16"})
    )
    turing = apply("restore-flash-attention", run(hardware={"gpu": "t4-16gb"}, activations={"attention": "eager"}, precision={"compute": "fp16"}))
    assert turing.job.activations.attention == "sdpa"
    ranks = {"strategy": "ddp", "replicate": 4}
    assert "bitsandbytes" in refusal("zero-3", run(method={"kind": "lora", "base": "nf4"}, parallel=ranks, framework=hf, hardware={"gpus_per_node": 4}))
    assert "ZeRO-3" in refusal("qlora", run(method={"kind": "lora"}, parallel={"strategy": "zero3", "shard": 4}, framework=hf))
    assert "older" in refusal("expandable-segments", run(framework={"name": "trl", "versions": {"torch": "2.0.1"}}))
    assert "accumulation" in refusal("optimizer-in-backward", run(batch={"gradient_accumulation": 2}, framework={"name": "torchtune"}))
    assert "matrices" in refusal("galore", run(parallel={"strategy": "fsdp2", "shard": 4}, framework=hf))
    assert "heads" in refusal(
        "ulysses", run(parallel={"strategy": "fsdp2", "shard": 64, "context": 8}, framework=hf, hardware={"gpus_per_node": 8, "nodes": 8})
    )


def test_vllm_sleep_and_expandable_segments_exclude_each_other() -> None:
    rollout = {"engine": "vllm", "placement": "colocated", "memory_fraction": 0.4, "sleep": "none"}
    before = run(rollout=rollout, objective="grpo", framework={"name": "trl", "allocator": {"expandable_segments": True}})
    slept = apply("rollout-sleep", before)
    assert (slept.job.framework.allocator or {})["expandable_segments"] is False
    assert slept.job.rollout is not None
    assert slept.job.rollout.sleep == "level-2"
    assert "sleep" in refusal("expandable-segments", slept)


def test_flags_depend_on_what_is_trained() -> None:
    technique = all_techniques()["load-in-16-bit"]
    frozen = run(method={"kind": "lora"}, precision={"weights": "fp32", "mixed": "autocast"}, framework={"name": "hf-trainer"})
    full = run(method={"kind": "full"}, precision={"weights": "fp32", "mixed": "autocast"}, framework={"name": "hf-trainer"})
    assert not technique.judged(frozen, apply("load-in-16-bit", frozen)).alters_learning
    assert technique.judged(full, apply("load-in-16-bit", full)).alters_learning


@pytest.mark.parametrize(
    "name", ["gradient-checkpointing", "smaller-micro-batch", "fused-linear-loss", "eight-bit-optimizer", "lora", "qlora", "shorter-sequence"]
)
def test_it_lowers_the_peak(name: str) -> None:
    before = run(method={"kind": "full"}, framework={"name": "trl"}, activations={"checkpointing": "none"}, hardware={"gpu": "a100-80gb"})
    assert estimate(apply(name, before)).peak().bytes < estimate(before).peak().bytes


@pytest.mark.parametrize(
    ("framework", "trl", "objective", "adapters", "why"),
    [
        ("trl", "0.11.4", "dpo", False, "older than 0.19"), ("trl", "0.18.2", "dpo", False, "older than 0.19"),
        ("trl", "0.16.1", "grpo", False, "older than 0.17"), ("trl", "0.16.1", "kto", False, "older than 0.17"),
        ("trl", "0.29.0", "rloo", False, "no Liger loss for rloo"),
        ("trl", "1.7.0", "dpo", True, "with adapters"), ("trl", "0.19.1", "kto", True, "with adapters"), ("trl", "1.16.0", "grpo", False, "by itself"),
        ("llama-factory", None, "dpo", False, "require_logits"),
    ],
)  # fmt: skip
def test_no_fused_loss_where_the_release_has_none(framework: str, trl: str | None, objective: str, adapters: bool, why: str) -> None:
    versions = {"versions": {"trl": trl}} if trl else {}
    before = run(
        framework={"name": framework, **versions}, objective=objective, activations={"loss": "full-fp32"}, method={"kind": "lora" if adapters else "full"}
    )
    assert why in refusal("fused-linear-loss", before)
    assert why in refusal("fused-kernels", before)


def test_no_fused_loss_beside_a_precomputed_reference() -> None:
    job = {"objective": "dpo", "reference": "precomputed", "activations": {"loss": "full-fp32"}, "method": {"kind": "full"}}
    assert "precomputed" in refusal("fused-linear-loss", run(framework={"name": "trl", "versions": {"trl": "1.7.0"}}, **job))
    assert apply("fused-linear-loss", run(framework={"name": "trl", "versions": {"trl": "0.19.1"}}, **job)).job.activations.loss == "fused-linear"


@pytest.mark.parametrize(
    ("trl", "objective", "line"),
    [
        ("0.19.1", "grpo", "use_liger_loss=True"), ("0.19.1", "dpo", "use_liger_loss=True"), ("0.24.0", "kto", "use_liger_loss=True"),
        ("0.25.1", "grpo", "use_liger_kernel=True"), ("1.7.0", "dpo", "use_liger_kernel=True"), ("0.19.1", "sft", "use_liger_kernel=True"),
    ],
)  # fmt: skip
def test_the_fused_loss_by_the_key_of_the_release(trl: str, objective: str, line: str) -> None:
    before = run(framework={"name": "trl", "versions": {"trl": trl}}, objective=objective, activations={"loss": "full-fp32"}, method={"kind": "full"})
    after = apply("fused-linear-loss", before)
    assert changed_lines(before, after) == {"trl": (line,)}
