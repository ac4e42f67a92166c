"""What the loss needs beside the policy: reference, reward, critic, rollout."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft


def settle(draft: Draft) -> None:
    """``objective``, ``reference``, ``reward``, ``critic``, ``rollout.*``."""
    if draft.has("rollout"):
        draft.assume("objective", "grpo", "the job generates while it trains", alternatives=("ppo", "rloo"))
    draft.assume("objective", "sft", "nothing names another objective", alternatives=("dpo", "pretrain"))
    objective, adapters = draft.get("objective"), draft.get("method.kind") in ("lora", "dora")
    if objective in ("dpo", "kto", "ppo"):
        if adapters:
            draft.default("reference", "adapter-off", "trl: the base with adapters switched off is the reference")
        draft.default("reference", "copy", f"trl {objective}: a frozen copy is held", alternatives=("precomputed",))
    elif objective == "rloo":
        draft.default("reference", "adapter-off" if adapters else "copy", "trl RLOOConfig beta 0.05")
    elif objective == "grpo" and draft.framework == "verl":
        draft.default("reference", "offloaded", "verl fsdp_workers.py: the reference is always offloaded")
    draft.default("reference", "none", f"{objective} needs none unless a KL term asks for it")
    draft.default("reward", "copy" if objective == "ppo" else "none", f"{objective}")
    draft.default("critic", "copy" if objective == "ppo" else "none", f"{objective}")
    if draft.has("rollout"):
        _rollout(draft)


def _rollout(draft: Draft) -> None:
    framework = draft.framework
    draft.assume("rollout.engine", "vllm", "the usual engine", alternatives=("sglang", "hf"))
    draft.assume("rollout.placement", "colocated", "the usual placement", alternatives=("separate",))
    engine = draft.get("rollout.engine")
    draft.default("rollout.weights", draft.get("precision.compute") if draft.get("precision.compute") in ("bf16", "fp16") else "bf16", f"{engine}: dtype auto")
    draft.default("rollout.tensor", 2 if framework == "verl" else 1, f"{framework}: tensor_model_parallel_size")
    if engine != "hf":
        fraction = {"trl": 0.3, "verl": 0.5, "nemo": 0.6, "openrlhf": 0.95, "llama-factory": 0.7}.get(framework or "", 0.9)
        draft.default("rollout.memory_fraction", fraction, f"{framework or engine}: gpu_memory_utilization", alternatives=(0.5, 0.9))
        draft.default("rollout.fraction_of", "free" if engine == "sglang" else "total", f"{engine}")
        sleep = {"verl": "level-2", "nemo": "level-1"}.get(framework or "", "none")
        draft.default("rollout.sleep", sleep, f"{framework}: sleep mode")
    draft.default("rollout.shares_weights", framework == "unsloth", "only Unsloth wraps the engine's own tensors")
    if framework in family.HF:
        draft.default("rollout.sync", "tensor", "trl vllm_generation.py: one parameter at a time")
