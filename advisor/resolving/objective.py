"""What the loss needs beside the policy: reference, reward, critic, rollout."""

from __future__ import annotations

import re

from advisor.resolving import family
from advisor.resolving.draft import RESOLVER, Draft

_PREFERENCE = frozenset({"dpo", "kto", "ppo", "rloo"})


def settle(draft: Draft) -> None:
    """``objective``, ``reference``, ``reward``, ``critic``, ``rollout.*``."""
    if draft.has("rollout"):
        draft.assume("objective", "grpo", "the job generates while it trains", alternatives=("ppo", "rloo"))
    draft.table("objective")
    _preference(draft)
    draft.assume("objective", "sft", "nothing names another objective", alternatives=("dpo", "pretrain"))
    objective, adapters = draft.get("objective"), draft.get("method.kind") in family.ADAPTERS
    _kl_term(draft, objective, adapters=adapters)
    draft.table("reference")
    if objective in _PREFERENCE and adapters:
        draft.default("reference", "adapter-off", "trl: the base with adapters switched off is the reference")
    if objective in _PREFERENCE:
        draft.default("reference", "copy", f"{objective}: a frozen copy is held", alternatives=("precomputed",))
    draft.default("reference", "none", f"{objective} needs none unless a KL term asks for it")
    draft.table("reward", "critic")
    ppo = objective == "ppo"
    draft.default("reward", "copy" if ppo else "none", f"{objective}: {'a reward model beside the policy' if ppo else 'none'}")
    draft.default("critic", "copy" if ppo else "none", f"{objective}: {'a value model is trained too' if ppo else 'none'}")
    if draft.has("rollout") or (objective in family.RL and draft.framework in ("verl", "nemo")):
        _rollout(draft)


def _preference(draft: Draft) -> None:
    """A TRL file without its trainer: ``beta`` beside ``max_prompt_length`` (DPOConfig, ORPOConfig, KTOConfig); its outputs' names say which."""
    if draft.framework != "trl" or draft.known("objective"):
        return
    keys = {key.rpartition(".")[2]: (where, value) for where, key, value in draft.evidence.seen_keys}
    if not {"beta", "max_prompt_length"} <= keys.keys() or {"num_generations", "max_completion_length"} & keys.keys():
        return
    why, others = "beta and max_prompt_length are settings of preference training", ("dpo", "orpo", "kto")
    for name in ("output_dir", "hub_model_id", "run_name"):
        where, value = keys.get(name, ("", ""))
        found = next((word for word in re.split(r"[-_./]", str(value).lower()) if word in others), None)
        if found is not None:
            draft.assume("objective", found, f"{why}, and {name} says {found} ({where})", alternatives=others)
            return
    draft.assume("objective", "dpo", why, alternatives=others[1:])


def _kl_term(draft: Draft, objective: str, *, adapters: bool) -> None:
    """A KL weight that was read decides whether a reference is held: trl grpo_trainer.py and rloo_trainer.py, ``beta == 0.0`` holds none."""
    if objective not in ("grpo", "rloo"):
        return
    for where, key, value in draft.evidence.seen_keys:
        if key.rpartition(".")[2] in ("beta", "kl_coef") and isinstance(value, int | float) and not isinstance(value, bool):
            held = "none" if value == 0 else "adapter-off" if adapters else "copy"
            draft.settle(
                "reference",
                held,
                "inferred",
                f"{key} = {value} ({where}): a KL term {'of weight 0 needs no' if value == 0 else 'needs a'} reference",
                where=RESOLVER,
            )
            return


def _rollout(draft: Draft) -> None:
    if draft.known("rollout.memory_fraction") or draft.known("rollout.sleep"):
        draft.infer("rollout.engine", "vllm", "an engine's share of the card is given")
    draft.table("rollout.engine")
    draft.assume("rollout.engine", "vllm", "the usual engine", alternatives=("sglang", "hf"))
    draft.table("rollout.placement")
    draft.assume("rollout.placement", "colocated", "the usual placement", alternatives=("separate",))
    engine = draft.get("rollout.engine")
    draft.table("rollout.weights", "rollout.tensor", "rollout.max_sequences", "rollout.wake", "rollout.sync", "rollout.shares_weights")
    compute = draft.get("precision.compute")
    draft.default("rollout.weights", compute if compute in ("bf16", "fp16") else "bf16", f"{engine}: dtype auto is the checkpoint's")
    draft.default("rollout.tensor", 1, f"{engine}: tensor parallel size")
    draft.default("rollout.shares_weights", engine == "hf", "the trainer's own model generates" if engine == "hf" else f"{engine} holds its own copy")
    if engine == "hf":
        return
    draft.table("rollout.memory_fraction", alternatives=(0.5, 0.9))
    draft.table("rollout.fraction_of", alternatives=("total", "free"))
    draft.table("rollout.sleep", alternatives=("none", "level-1"))
    draft.default("rollout.memory_fraction", 0.9, f"{engine}: gpu_memory_utilization", alternatives=(0.3, 0.5))
    draft.default("rollout.fraction_of", "free" if engine == "sglang" else "total", f"{engine}: what the fraction is a share of")
    draft.default("rollout.sleep", "none", "not asked for")
