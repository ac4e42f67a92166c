"""The rollout engine keeps weights and KV cache on the card while the trainer works."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import observed, snapshots, waking
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import TRAINING, colocated, in_phase
from advisor.run import Run
from advisor.units import GIB, show


def _applies(run: Run, evidence: Evidence) -> str | None:
    if run.job.rollout is None and snapshots.part(evidence, "rollout-cache", "rollout-weights")[0] > 0:
        return None  # the engine's blocks are in this process's snapshot
    if run.job.rollout is None:
        return "the job generates no text while it trains"
    return "the engine has cards of its own" if run.job.rollout.placement == "separate" else None


def _outside(run: Run, evidence: Evidence) -> str | None:
    """The process itself holds far more of the card than PyTorch reserved: an engine in the same process maps its own."""
    failure = evidence.failure
    if failure is None or failure.own_bytes is None or failure.reserved_bytes is None or failure.capacity_bytes is None or not colocated(run):
        return None
    beside = failure.own_bytes - failure.reserved_bytes
    if beside < max(4 * GIB, 0.1 * failure.capacity_bytes):
        return None
    return f"this process holds {show(beside)} beside what PyTorch reserved: the engine's"


def _awake(run: Run, evidence: Evidence) -> str | None:
    rollout = run.job.rollout
    if rollout is None or rollout.sleep != "none" or not colocated(run) or rollout.engine == "hf":
        return None
    if not in_phase(evidence, *TRAINING):
        return None
    share = f", which may be {rollout.memory_fraction:.0%} of the card" if rollout.memory_fraction else ""
    return f"the engine does not sleep: its weights and cache stay while the trainer works{share}"


def _returns(run: Run, evidence: Evidence) -> str | None:
    """The trainer's own state can not come back: the engine that does not sleep is still there."""
    rollout = run.job.rollout
    if rollout is None or rollout.sleep not in (None, "none") or not waking.trainer_returns(evidence):
        return None
    return "the trainer's own state comes back while the engine, which does not sleep, holds its share"


def _asleep(run: Run, evidence: Evidence) -> str | None:
    rollout = run.job.rollout
    if _outside(run, evidence) is not None:
        return None  # what it was told to do is one thing, what is still mapped another
    return "the engine sleeps while the trainer works" if rollout is not None and rollout.sleep in ("level-1", "level-2") else None


STAYS = 2 * GIB  # beyond a context, its communicators and libraries


def _stays(_run: Run, evidence: Evidence) -> str | None:
    held = observed.held_asleep(evidence)
    return f"the engine holds {show(held[0])} while it sleeps ({held[1]})" if held is not None and held[0] >= STAYS else None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    rollout = run.job.rollout
    if rollout is None or rollout.sleep in (None, "none") or not colocated(run):
        return None
    from advisor.deviation import ineffective

    return run.deviating(ineffective("rollout.sleep", cause="rollout-resident"))


RULE = Rule(
    id="rollout-resident",
    tier="copies",
    title="The rollout engine stays on the card while the trainer works",
    cleared="No engine holds the card while the trainer works.",
    prior=-1.0,
    applies=_applies,
    explains=("forward", "loss", "backward", "step"),
    marks=(
        Mark(
            "rollout-resident-awake",
            3.0,
            "no sleep",
            "TRL vllm_enable_sleep_mode False keeps gpu_memory_utilization x total for good (vllm_generation.py)",
            when=_awake,
        ),
        Mark("rollout-resident-returns", 3.0, "no room to come back", "the frames of a move to the device outside the engine", when=_returns),
        Mark(
            "rollout-resident-outside",
            2.5,
            "held beside PyTorch's allocator",
            "vLLM cumem and SGLang's memory saver map the engine's memory by the driver",
            when=_outside,
        ),
        Mark(
            "rollout-resident-stays",
            3.5,
            "much is left asleep",
            "vLLM device_allocator/cumem.py frees what its pool holds; contexts, communicators, graphs and what was allocated outside the pool stay",
            when=_stays,
        ),
        Mark(
            "rollout-resident-workspace",
            3.5,
            "the engine that generates finds no room for its workspace beside the trainer's state",
            "DeepSpeed runtime/hybrid_engine.py retake_inference_cache: released after generation (release_inference_cache), asked for again before the next",
            pattern=r"hybrid_engine\.py:retake_inference_cache\b|Unable to (?:retake inference|acquire) workspace",
        ),
        Mark("rollout-resident-asleep", -2.0, "sleeps", "vLLM sleep level 1 and 2 release weights and cache (cumem.py)", when=_asleep),
        *share_marks("rollout-resident", "rollout-weights", "rollout-cache", some=0.15, most=0.35, weights=(0.8, 1.0), noun="the engine's weights and cache"),
        *snapshots.part_marks("rollout-resident", "rollout-cache", "rollout-weights", "rollout-graphs"),
    ),
    fault=_fault,
    remedies=("rollout-sleep", "rollout-fraction", "separate-rollout", "share-rollout-weights"),
    fires=(
        Example(
            "much is left while it sleeps",
            job=job("Qwen/Qwen2.5-3B", objective="grpo", rollout="{engine: vllm, placement: colocated, memory_fraction: 0.3, sleep: level-1}"),
            text="The vLLM worker still shows 9.6 GiB in nvidia-smi while it is in sleep mode, and the policy's backward pass runs out of memory.\n",
        ),
        Example(
            "GRPO, engine awake in the backward pass",
            job=job(
                "Qwen/Qwen2.5-3B",
                objective="grpo",
                method="{kind: full}",
                precision="{weights: fp32, compute: bf16, mixed: autocast}",
                batch="{micro_batch: 6, seq_len: 4608}",
                activations="{checkpointing: full, loss: fused-linear}",
                reference="none",
                rollout="{engine: vllm, placement: colocated, memory_fraction: 0.3, sleep: none}",
                hardware="{gpu: h100-80gb}",
            ),
            text=trace("torch/autograd/graph.py|_engine_run_backward") + oom("582.00 MiB", allocated=77.0),
        ),
    ),
    quiet=(
        Example(
            "an engine that sleeps well",
            job=job("Qwen/Qwen2.5-3B", objective="grpo", rollout="{engine: vllm, placement: colocated, memory_fraction: 0.3, sleep: level-1}"),
            text="The vLLM worker holds 820 MiB while it is asleep.\n" + oom("582.00 MiB", allocated=77.0),
        ),
        Example(
            "the engine wakes for new weights",
            job=job("Qwen/Qwen2.5-7B", objective="grpo", rollout="{engine: vllm, placement: colocated, memory_fraction: 0.5, sleep: level-1}"),
            text=trace(
                "verl/workers/fsdp_workers.py|rollout_mode|await self.rollout.resume(tags=['weights'])",
                "vllm/device_allocator/cumem.py|wake_up|create_and_map(handle)",
            )
            + oom("742.00 MiB", allocated=8.6, own=78.9),
        ),
        Example("no generation", job=job(objective="sft"), text=trace("torch/autograd/graph.py|_engine_run_backward") + oom("512.00 MiB", allocated=76.5)),
    ),
)
