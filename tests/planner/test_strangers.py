"""What a stranger found silly in a plan, one test for each."""

from __future__ import annotations

import re
from typing import Any

import pytest

from advisor import diagnose
from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.planner.lines import snippet
from advisor.planner.measuring import Bench
from advisor.planner.stepping import changed_lines
from advisor.planner.storage import MOST_HOST_GIB, host_of_node
from advisor.planner.words import host
from advisor.planning import Constraints, plan
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques
from advisor.units import GIB
from tests.planner.laws import hold


def run(**sections: Any) -> Run:
    return resolve(read_job({"version": 1, "objective": "sft", **sections}))


def on_a_t4(**sections: Any) -> Run:
    return run(
        model={"name": "Qwen/Qwen2.5-1.5B"}, batch={"micro_batch": 8, "seq_len": 4096}, hardware={"gpu": "t4-16gb", "gpus_per_node": 1},
        framework={"name": "trl"}, **{"method": {"kind": "lora", "rank": 16}, "precision": {"compute": "bf16"}, **sections},
    )  # fmt: skip


def test_a_card_without_bf16_is_asked_to_compute_in_fp16() -> None:
    step = plan(on_a_t4()).steps[0]
    assert step.technique == "restore-flash-attention"
    assert step.run is not None
    assert step.run.job.precision.compute == "fp16"
    assert not step.exact
    assert any("fp16" in line for lines in step.settings.values() for line in lines)


def test_fp16_is_not_asked_of_weights_that_are_stepped_in_bf16_alone() -> None:
    pure = on_a_t4(method={"kind": "full"}, precision={"compute": "bf16", "weights": "bf16", "mixed": "none"})
    assert isinstance(all_techniques()["restore-flash-attention"].apply(pure), NotApplicable)


def test_sequence_parallelism_is_free_and_comes_before_recomputation() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 65536, "gradient_accumulation": 64},
        parallel={"strategy": "megatron", "tensor": 8}, hardware={"gpu": "h100-80gb", "gpus_per_node": 8}, framework={"name": "megatron-lm"},
        precision={"compute": "bf16"}, activations={"checkpointing": "none"},
    )  # fmt: skip
    names = [step.technique for step in plan(start).steps]
    assert "sequence-parallel" in names
    assert not {"gradient-checkpointing", "selective-checkpointing"} & set(names)


@pytest.mark.parametrize("name", ["trl", "hf-trainer", "axolotl", "llama-factory", "ms-swift", "accelerate"])
def test_no_fsdp_beside_a_deepspeed_config(name: str) -> None:
    start = run(
        model={"name": "Qwen/Qwen2.5-14B"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 4096}, framework={"name": name},
        parallel={"strategy": "zero2", "shard": 8}, hardware={"gpu": "a100-80gb", "gpus_per_node": 8},
    )  # fmt: skip
    refused = all_techniques()["fsdp"].apply(start)
    assert isinstance(refused, NotApplicable)
    assert "ZeRO stage" in refused.reason
    assert isinstance(all_techniques()["zero-3"].apply(start), Run)


def test_unsloth_gets_no_line_of_ligers() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "lora"}, batch={"micro_batch": 8, "seq_len": 8192}, framework={"name": "unsloth"},
        activations={"checkpointing": "none"}, hardware={"gpu": "rtx4090-24gb", "gpus_per_node": 1},
    )  # fmt: skip
    made = plan(start)
    lines = [line for step in (*made.steps, *made.runner_up, *made.alternatives) for group in step.settings.values() for line in group]
    assert not any("liger" in line for line in lines)
    assert "gradient-checkpointing" in [step.technique for step in made.steps]
    assert any(re.search(r"use_gradient_checkpointing=.unsloth.", line) for line in lines)


def test_a_ring_waits_until_all_that_is_a_line_of_a_config_is_in_place() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.2-1B"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 196608}, framework={"name": "hf-trainer"},
        parallel={"strategy": "zero2", "shard": 4}, hardware={"gpu": "rtx4090-24gb", "gpus_per_node": 4}, activations={"checkpointing": "none"},
    )  # fmt: skip
    names = [step.technique for step in plan(start).steps]
    assert names[-1] == "ulysses"
    assert "gradient-checkpointing" in names


def test_nothing_is_cut_up_over_a_bus_before_everything_is_recomputed() -> None:
    bench = Bench(
        run(
            model={"name": "meta-llama/Llama-3.1-8B"}, batch={"micro_batch": 1, "seq_len": 32768}, framework={"name": "custom"},
            parallel={"strategy": "fsdp2", "shard": 4}, hardware={"gpu": "l40s-48gb", "gpus_per_node": 4}, activations={"checkpointing": "none"},
        ),
        lambda r: 1 << 60, None, Constraints(),
    )  # fmt: skip
    ring, both = bench.measure((("context-parallel", 1),)), bench.measure((("context-parallel", 1), ("gradient-checkpointing", 1)))
    assert ring is not None
    assert both is not None
    assert not bench.may_fit(ring)
    assert bench.may_fit(both)


def test_a_narrow_gradient_buffer_is_not_asked_for_where_the_layout_fits_without() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-405B"}, objective="pretrain", batch={"micro_batch": 1, "seq_len": 8192, "gradient_accumulation": 16},
        hardware={"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 2048}, parallel={"strategy": "megatron-distributed", "shard": 16384},
        framework={"name": "megatron-lm"},
    )  # fmt: skip
    made = plan(start)
    assert made.fits
    assert "narrow-gradient-buffer" not in {step.technique for step in made.steps}
    assert not any("grad-reduce-in-bf16" in line for step in made.steps for lines in step.settings.values() for line in lines)


def test_no_more_host_memory_is_asked_for_than_any_machine_has() -> None:
    bench = Bench(
        run(
            model={"name": "meta-llama/Llama-3.1-70B"}, batch={"micro_batch": 16, "seq_len": 65536}, framework={"name": "custom"},
            parallel={"strategy": "fsdp2", "shard": 8}, hardware={"gpu": "h100-80gb", "gpus_per_node": 8}, activations={"checkpointing": "none"},
        ),
        lambda r: 1 << 60, None, Constraints(),
    )  # fmt: skip
    away = bench.measure((("offload-activations", 1),))
    assert away is not None
    assert host_of_node(away.ledger, 8) > MOST_HOST_GIB * GIB
    assert not bench.may_fit(away)
    told = host(bench.measure(()), away)  # type: ignore[arg-type]
    assert "no server" in told
    assert "TiB" in told


def test_a_step_inside_the_backward_pass_goes_with_no_accumulation() -> None:
    """torchtune refuses optimizer_in_bwd with gradient_accumulation_steps above one."""
    shared = {
        "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "framework": {"name": "torchtune"},
        "parallel": {"strategy": "fsdp2", "shard": 4}, "hardware": {"gpu": "a100-40gb", "gpus_per_node": 4},
    }  # fmt: skip
    accumulating = run(**shared, batch={"micro_batch": 4, "seq_len": 8192, "gradient_accumulation": 8})
    assert isinstance(all_techniques()["optimizer-in-backward"].apply(accumulating), NotApplicable)
    inside = run(**shared, batch={"micro_batch": 4, "seq_len": 8192}, optimizer={"in_backward": True})
    for technique in all_techniques().values():
        after = technique.apply(inside)
        assert isinstance(after, NotApplicable) or not after.job.optimizer.in_backward or after.job.batch.gradient_accumulation in (None, 1), technique.id
    for step in plan(accumulating).steps:
        assert step.run is None or not step.run.job.optimizer.in_backward or step.run.job.batch.gradient_accumulation in (None, 1)


def test_packed_weights_under_fsdp_are_told_their_storage_type() -> None:
    base = {"model": {"name": "meta-llama/Llama-3.1-70B"}, "batch": {"micro_batch": 1, "seq_len": 2048}, "framework": {"name": "trl"}}
    cards = {"hardware": {"gpu": "rtx4090-24gb", "gpus_per_node": 4}}
    wide = run(**base, **cards, method={"kind": "lora"}, parallel={"strategy": "fsdp2", "shard": 4}, precision={"weights": "bf16"})
    packed = run(**base, **cards, method={"kind": "lora", "base": "nf4"}, parallel={"strategy": "ddp", "replicate": 4}, precision={"weights": "bf16"})
    for before, name in ((wide, "qlora"), (packed, "fsdp")):
        after = all_techniques()[name].apply(before)
        assert isinstance(after, Run)
        assert 'bnb_4bit_quant_storage="bfloat16"' in "\n".join(changed_lines(before, after, name)["script"])
    alone = all_techniques()["qlora"].apply(run(**base, method={"kind": "lora"}, hardware={"gpu": "h200-141gb"}))
    assert isinstance(alone, Run)
    assert not any("quant_storage" in line for line in snippet("qlora", alone.job, True))


def test_a_base_that_is_packed_is_not_packed_again_where_little_else_is_known() -> None:
    text = """Traceback (most recent call last):
  File "/x/site-packages/transformers/modeling_utils.py", line 4264, in from_pretrained
    hf_quantizer.validate_environment(
  File "/x/site-packages/transformers/quantizers/quantizer_bnb_4bit.py", line 103, in validate_environment
    raise ValueError(
ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the quantized model.
"""
    made = diagnose([("error.txt", text)])
    assert made.plan is not None
    assert made.plan.steps
    assert not {"qlora", "zero-3"} & {step.technique for step in made.plan.steps}


def test_of_adapters_the_host_is_not_asked_to_hold_the_state() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-70B"}, method={"kind": "lora"}, batch={"micro_batch": 16, "seq_len": 4096}, framework={"name": "torchtune"},
        hardware={"gpu": "a100-40gb"},
    )  # fmt: skip
    assert isinstance(all_techniques()["offload-optimizer"].apply(start), NotApplicable)


def test_where_nothing_fits_no_last_resort_stands_before_recomputation() -> None:
    start = run(
        model={"name": "mistralai/Mixtral-8x7B-v0.1"}, method={"kind": "full"}, batch={"micro_batch": 2, "seq_len": 16384, "gradient_accumulation": 4},
        hardware={"gpu": "a100-40gb"}, framework={"name": "deepspeed", "versions": {"transformers": "5.24.0"}}, activations={"checkpointing": "none"},
    )  # fmt: skip
    made = plan(start)
    names = [step.technique for step in made.steps]
    assert names[-1] == "larger-gpu"
    assert "gradient-checkpointing" in names
    assert "offload-activations" not in names


def test_a_smaller_batch_that_pays_only_beside_a_packed_base_is_found() -> None:
    """Alone it makes full fine-tuning keep its gradients from pass to pass; beside adapters it comes before anything waits for the host."""
    start = run(
        model={"name": "Qwen/Qwen2.5-14B"}, method={"kind": "full"}, batch={"micro_batch": 16, "seq_len": 512}, framework={"name": "hf-trainer"},
        hardware={"gpu": "t4-16gb", "gpus_per_node": 1}, activations={"checkpointing": "full"},
    )  # fmt: skip
    names = [step.technique for step in plan(start).steps]
    assert "smaller-micro-batch" in names
    assert "offload-activations" not in names


def test_what_fits_by_the_middle_of_the_estimate_alone_is_said_so() -> None:
    start = run(
        model={"name": "google/gemma-2-9b"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 512, "gradient_accumulation": 4},
        framework={"name": "torchtitan"}, hardware={"gpu": "a100-80gb", "gpus_per_node": 1}, activations={"checkpointing": "full"},
    )  # fmt: skip
    made = plan(start)
    assert made.fits
    assert made.steps or "less than its error" in made.summary


def test_beside_a_plan_that_is_very_slow_stands_what_learns_otherwise() -> None:
    start = run(
        model={"name": "Qwen/Qwen2.5-14B"}, method={"kind": "full"}, batch={"micro_batch": 4, "seq_len": 512}, framework={"name": "litgpt"},
        hardware={"gpu": "h100-80gb", "gpus_per_node": 1}, activations={"checkpointing": "none"},
    )  # fmt: skip
    made = plan(start)
    assert not any(step.alters_learning for step in made.steps)
    assert max(step.step_time_ratio or 1 for step in made.steps) > 3
    assert any(step.alters_learning for step in made.runner_up)
    assert made.runner_up[-1].fits_after


@pytest.mark.parametrize("cause", ["optimizer-state", "activations", "logits"])
def test_no_remedy_of_the_first_cause_stays_where_a_later_step_is_enough(cause: str) -> None:
    """8-bit states came first and were not enough; a load in 16 bits came second and was enough alone."""
    start = run(
        model={"name": "mistralai/Mistral-7B-v0.1"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 1024, "gradient_accumulation": 16},
        precision={"weights": "fp32", "compute": "bf16"}, activations={"checkpointing": "full"}, hardware={"gpu": "a100-80gb", "gpus_per_node": 1},
        framework={"name": "hf-trainer", "versions": {"transformers": "4.44.2", "torch": "2.4.0"}},
    )  # fmt: skip
    made = plan(start, causes=[cause])
    hold(start, made)
    assert [step.technique for step in made.steps] == [step.technique for step in plan(start).steps]


def test_what_only_takes_time_back_stands_in_the_runner_up() -> None:
    start = run(
        model={"name": "google/gemma-2-9b"}, method={"kind": "full"}, batch={"micro_batch": 4, "seq_len": 4096, "gradient_accumulation": 16},
        activations={"checkpointing": "full", "attention": "sdpa", "loss": "full-fp32"}, parallel={"strategy": "fsdp2", "shard": 4},
        hardware={"gpu": "a100-80gb", "gpus_per_node": 4}, framework={"name": "hf-trainer"},
    )  # fmt: skip
    made = plan(start)
    hold(start, made)
    assert [step.technique for step in made.steps] == ["fused-linear-loss"]
    assert "restore-flash-attention" in [step.technique for step in made.runner_up]
    assert made.runner_up[-1].fits_after


def test_what_is_only_bounded_is_offered_as_unknown_and_never_as_zero() -> None:
    """FSDP1 without its rate limiter holds as many gathered blocks as the host runs ahead: at most all of them."""
    start = run(
        model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 4096}, framework={"name": "custom"},
        parallel={"strategy": "fsdp1", "shard": 8, "limit_all_gathers": False}, hardware={"gpu": "a100-80gb", "gpus_per_node": 8},
        activations={"checkpointing": "full"},
    )  # fmt: skip
    step = next(step for step in plan(start).alternatives if step.technique == "limit-all-gathers")
    assert step.why.startswith("How much it saves is not known: at most ")
    whole, limited = estimate(start).totals()["max_allocated"], estimate(step.run).totals()["max_allocated"]  # type: ignore[arg-type]
    assert whole.expected == limited.expected
    assert whole.high - limited.high > 4 * GIB
    bounded = start.but(parallel={"limit_all_gathers": True})
    assert "limit-all-gathers" not in [step.technique for step in plan(bounded).alternatives]
