"""What an expert would choose: packed bases where nothing exact is enough, samples cut last, the host named, room spent on speed."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.job import read_job
from advisor.planner.layouts import layouts
from advisor.planning import Constraints, plan
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques
from tests.planner.laws import hold, needs


def run(**sections: Any) -> Run:
    job: dict[str, Any] = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "objective": "sft",
        "batch": {"micro_batch": 4, "seq_len": 2048}, "hardware": {"gpu": "a100-80gb", "gpus_per_node": 1}, "framework": {"name": "hf-trainer"},
    }  # fmt: skip
    for name, content in sections.items():
        job[name] = {**job.get(name, {}), **content} if isinstance(content, dict) else content
    return resolve(read_job(job))


@pytest.mark.parametrize(
    ("model", "card", "framework", "seq_len"),
    [("Qwen/Qwen2.5-7B", "t4-16gb", "hf-trainer", 2048), ("Qwen/Qwen2.5-14B", "rtx4090-24gb", "trl", 8192)],
)
def test_adapters_that_are_too_large_get_a_packed_base_and_whole_samples(model: str, card: str, framework: str, seq_len: int) -> None:
    start = run(model={"name": model}, method={"kind": "lora"}, hardware={"gpu": card}, framework={"name": framework}, batch={"seq_len": seq_len})
    made = plan(start)
    hold(start, made)
    names = {s.technique for s in made.steps}
    assert made.fits
    assert "qlora" in names
    assert not names & {"shorter-sequence", "smaller-rank", "larger-gpu"}


def test_one_small_card_for_full_training_gets_4_bits_and_no_other_optimizer_beside_them() -> None:
    start = run(hardware={"gpu": "t4-16gb"}, batch={"micro_batch": 2})
    made = plan(start)
    hold(start, made)
    names = [s.technique for s in made.steps]
    assert made.fits
    assert "qlora" in names
    assert not {"factored-optimizer", "eight-bit-optimizer", "larger-gpu"} & set(names)


def test_a_smaller_micro_batch_comes_before_a_shorter_sequence() -> None:
    start = run(method={"kind": "lora"}, hardware={"gpu": "rtx4090-24gb"}, batch={"micro_batch": 8, "seq_len": 8192}, framework={"name": "trl"})
    names = [s.technique for s in plan(start).steps]
    assert "shorter-sequence" not in names


def test_the_host_is_named_where_something_moves_there() -> None:
    start = run(hardware={"gpu": "l40s-48gb"}, batch={"micro_batch": 1})
    step = next(s for s in plan(start).steps if s.technique == "offload-optimizer")
    assert "host" in step.why
    assert "GiB" in step.why
    assert (step.step_time_ratio or 0) > 1.2


def test_of_two_offloads_the_one_that_moves_less() -> None:
    start = run(
        parallel={"strategy": "zero3", "shard": 8},
        hardware={"gpu": "t4-16gb", "gpus_per_node": 8},
        batch={"micro_batch": 1},
        activations={"checkpointing": "full"},
    )
    names = [s.technique for s in plan(start).steps]
    assert "offload-parameters" not in names


def test_room_is_spent_on_speed_and_still_fits() -> None:
    start = run(method={"kind": "lora"}, batch={"micro_batch": 1, "seq_len": 2048, "gradient_accumulation": 16}, activations={"checkpointing": "full"})
    made = plan(start)
    assert made.fits
    assert made.steps == ()
    assert {"less-checkpointing"} <= {s.technique for s in made.runner_up}
    assert all(s.fits_after for s in made.runner_up)
    assert all((s.step_time_ratio or 1) < 1 for s in made.runner_up)
    last = made.runner_up[-1].run
    assert last is not None
    assert last.usable is not None
    assert needs(last) <= last.usable[0]
    assert "room" in made.summary


def test_a_runner_up_is_another_plan() -> None:
    made = plan(run(method={"kind": "lora"}, hardware={"gpu": "l40s-48gb"}, batch={"micro_batch": 8}, activations={"checkpointing": "none"}))
    assert made.steps[-1].run is not None
    assert all(s.run is None or s.run.job != made.steps[-1].run.job for s in made.runner_up[-1:])
    jobs = [s.run.job for s in made.alternatives if s.run is not None]
    assert all(a != b for n, a in enumerate(jobs) for b in jobs[n + 1 :])


def test_experts_are_spread_in_layouts() -> None:
    start = run(
        model={"name": "mistralai/Mixtral-8x22B-v0.1"}, objective="pretrain", batch={"micro_batch": 1, "seq_len": 4096, "gradient_accumulation": 8},
        hardware={"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 8}, parallel={"strategy": "megatron-distributed", "shard": 64},
        framework={"name": "megatron-lm"},
    )  # fmt: skip
    found = layouts(start)
    assert found[0].fits
    assert {x.expert for x in found} >= {1, 8}
    assert all(x.run.world == 64 for x in found)
    assert found[0].expert == 8


def test_settings_of_trl_are_offered_from_the_version_that_has_them() -> None:
    rollout = {"engine": "vllm", "placement": "colocated", "memory_fraction": 0.3, "sleep": "none"}
    for version, able in (("0.22.2", False), ("0.23.0", True)):
        start = run(objective="grpo", rollout=rollout, framework={"name": "trl", "versions": {"trl": version}})
        assert isinstance(all_techniques()["rollout-sleep"].apply(start), NotApplicable) is not able
    for version, able in (("1.3.0", False), ("1.4.0", True)):
        start = run(framework={"name": "trl", "versions": {"trl": version}}, activations={"loss": "full-fp32"})
        assert isinstance(all_techniques()["chunked-loss"].apply(start), NotApplicable) is not able


def test_attention_with_a_cap_is_not_fused_by_sdpa() -> None:
    start = run(model={"name": "google/gemma-2-9b"}, activations={"attention": "sdpa"})
    after = all_techniques()["restore-flash-attention"].apply(start)
    assert isinstance(after, Run)
    assert after.job.activations.attention == "flash-2"


def test_at_most_n_changes() -> None:
    start = run(hardware={"gpu": "t4-16gb"}, batch={"micro_batch": 2})
    made = plan(start, allow=Constraints(most_changes=1))
    assert len([s for s in made.steps if s.tier in ("shard", "batch")]) <= 1


def test_no_two_lines_of_a_plan_disagree() -> None:
    from advisor.planner.agreeing import agreeing
    from advisor.report import Step

    def step(name: str, **settings: tuple[str, ...]) -> Step:
        return Step(name, name, "batch", True, 2, 1, 1.0, True, settings, "why")

    first = step(
        "a", axolotl=("gradient_checkpointing: true", "micro_batch_size: 2"), torchtune=("optimizer:", "  _component_: torch.optim.AdamW", "  fused: true")
    )
    later = step("b", axolotl=("gradient_checkpointing: unsloth",), torchtune=("optimizer:", "  _component_: bitsandbytes.optim.AdamW8bit"), script=("x = 1",))
    made = agreeing((first, later))
    assert made[0].settings["axolotl"] == ("gradient_checkpointing: unsloth", "micro_batch_size: 2")
    assert made[0].settings["torchtune"] == ("optimizer:", "  _component_: bitsandbytes.optim.AdamW8bit", "  fused: true")
    assert made[1].settings == later.settings


def test_where_only_hardware_is_left_a_smaller_card_for_a_packed_base_is_named() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-70B"}, method={"kind": "lora"}, hardware={"gpu": "rtx3090-24gb"}, batch={"micro_batch": 1, "seq_len": 1024}
    )
    made = plan(start)
    assert made.fits
    assert made.steps[-1].technique == "larger-gpu"
    assert made.irreducible
    assert "If what is learned may change" in made.summary
