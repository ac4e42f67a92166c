"""Old weights, KV cache and freshly gathered weights are resident together at the hand-over."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import waking
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import in_phase
from advisor.run import Run


def _sync(run: Run, evidence: Evidence) -> str | None:
    return "the failure comes at the hand-over of the weights" if in_phase(evidence, "sync") and waking.hands_over(run, evidence) else None


RULE = Rule(
    id="weight-sync-overlap",
    tier="copies",
    title="Old and new weights (and the cache) are on the card together at the hand-over to the engine",
    cleared="The failure is not at the hand-over of weights to the engine.",
    prior=-1.0,
    explains=("sync",),
    marks=(
        Mark("weight-sync-phase", 2.5, "at the hand-over", "the failing phase", when=_sync),
        Mark(
            "weight-sync-wake",
            3.5,
            "the engine wakes up beside what the trainer still holds",
            "vLLM device_allocator/cumem.py wake_up -> create_and_map; SGLang torch_memory_saver resume(tags=['weights'])",
            pattern=r"\bwake_up\b|create_and_map|cumem|resume(_memory_occupation)?\(\s*tags?|torch_memory_saver",
            when=lambda run, evidence: "" if waking.hands_over(run, evidence) else None,
        ),
        Mark(
            "weight-sync-update",
            3.0,
            "the trainer pushes its weights into the engine",
            "verl fsdp_workers.rollout_mode / update_weights, TRL _move_model_to_vllm / sync_weights, OpenRLHF _broadcast_to_vllm",
            pattern=r":(update_weights?\w*|sync_weights\w*|_?move_model_to_vllm|_broadcast_to_vllm|rollout_mode|load_weights|push_weights|refit\w*)\b",
            on="frame",
        ),
    ),
    remedies=("staged-wake-up", "rollout-fraction", "upgrade"),
    fires=(
        Example(
            "wake-up without room",
            job=job("Qwen/Qwen2.5-7B", objective="grpo", rollout="{engine: vllm, placement: colocated, memory_fraction: 0.5, sleep: level-2}"),
            text='  File "/usr/lib/python3/dist-packages/vllm/device_allocator/cumem.py", line 234, in wake_up\n    create_and_map(handle)\n'
            "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n",
        ),
    ),
    quiet=(
        Example(
            "the trainer comes back beside an engine that stays",
            job=job("Qwen/Qwen3-4B", objective="grpo", rollout="{engine: sglang, placement: colocated, memory_fraction: 0.8, sleep: none}"),
            text=trace("slime/backends/fsdp_utils/actor.py|wake_up|self.model.cuda()", "torch/nn/modules/module.py|convert|return t.to(")
            + oom("742.00 MiB", allocated=8.6, own=78.9),
        ),
        Example("no engine", job=job(objective="sft"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
