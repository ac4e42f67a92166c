"""Generation: bounds of prompt and completion, engines, the reference that a KL term needs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count, flag, names
from advisor.job import Job


def prompt_and_completion(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt and completion bounds, which together bound the sequence."""
    bounds = [count(v) for v in raw.values() if v is not None]
    return {"batch.seq_len": sum(bounds)} if len(bounds) == 2 else {}


def engines(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Any vLLM engine at all."""
    return {"rollout.engine": "vllm"} if count(next(iter(raw.values()))) > 0 else {}


def verl_reference(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A KL term in the loss or in the reward needs a reference; with adapters it is the base; FSDP always keeps it on the host."""
    asked = [flag(raw[k]) for k in ("actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward") if raw.get(k) is not None]
    if not asked:
        return {}
    if not any(asked):
        return {"reference": "none"}
    if raw.get("actor_rollout_ref.model.lora_rank") and count(raw["actor_rollout_ref.model.lora_rank"]) > 0:
        return {"reference": "adapter-off"}
    strategy = str(raw.get("actor_rollout_ref.actor.strategy") or "fsdp")
    if strategy.startswith("fsdp"):
        return {"reference": "offloaded"}
    return {"reference": "offloaded" if flag(raw.get("actor_rollout_ref.ref.megatron.param_offload", False)) else "copy"}


def verl_budget(raw: Mapping[str, Any]) -> dict[str, Any]:
    """With dynamic batches a forward pass is filled to a budget of tokens."""
    dynamic, budget = (raw.get(f"actor_rollout_ref.actor.{k}") for k in ("use_dynamic_bsz", "ppo_max_token_len_per_gpu"))
    if dynamic is None or not flag(dynamic):
        return {}
    return {"batch.token_budget": count(budget) if budget is not None else 16_384}


def write_verl_budget(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    """Dynamic batches, and their budget."""
    return {"actor_rollout_ref.actor.use_dynamic_bsz": True, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": wanted["batch.token_budget"]}


def verl_sft_budget(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's supervised trainer fills its passes to 8192 tokens unless told otherwise; the older one (``model.partial_pretrain``) has no such budget."""
    dynamic, budget = raw.get("data.use_dynamic_bsz"), raw.get("data.max_token_len_per_gpu")
    if dynamic is not None and not flag(dynamic):
        return {}
    return {"batch.token_budget": count(budget) if budget is not None else 8_192}


_STOCK = frozenset({"ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine", "generation", "evaluation"})


def verl_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The file of settings that the overrides stand over.

    Raises:
        ValueError: one that is not verl's own, so that its values are not known.
    """
    name = str(raw.get("config-name") or "ppo_trainer").removesuffix(".yaml").removesuffix(".yml")
    if name not in _STOCK:
        raise ValueError("the config that these settings stand over is not verl's own; give it too, its values are not seen here")
    return {}


def verl_micro(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The old key counts the samples of all data ranks: the ranks over those that share a sequence or a model."""
    total = raw.get("actor_rollout_ref.actor.ppo_micro_batch_size")
    if total is None:
        return {}
    ranks = count(raw.get("trainer.n_gpus_per_node") or 8) * count(raw.get("trainer.nnodes") or 1)
    shared = [count(value) for key, value in raw.items() if key.endswith("_parallel_size") and value is not None]
    return {"batch.micro_batch": max(1, count(total) // max(1, ranks // max(1, math.prod(shared))))}


def verl_recompute(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's layers under verl: ``recompute_granularity`` and its modules."""
    found = {key.rsplit(".", 1)[-1]: value for key, value in raw.items() if value is not None}
    kind = str(found.get("recompute_granularity") or "").lower()
    if kind == "selective":
        return {"activations.checkpointing": "selective", "activations.selective": {"ops": names(found.get("recompute_modules") or "core_attn")}}
    return {"activations.checkpointing": "full"} if kind == "full" else {}


def apart(_raw: Mapping[str, Any]) -> dict[str, Any]:
    """The engine is given cards of its own."""
    return {"rollout.placement": "separate"}


def swift_sequence(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Where a completion is bounded, ``max_length`` bounds the prompt before it."""
    length, completion = raw.get("max_length"), raw.get("max_completion_length")
    return {"batch.seq_len": count(length) + count(completion or 0)} if length is not None else {}


def write_swift_sequence(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The length; a generating job's is shared by prompt and completion, half each."""
    length = wanted["batch.seq_len"]
    return {"max_length": length} if after.rollout is None else {"max_length": length - length // 2, "max_completion_length": length // 2}


def slime_budget(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens of one card's pass; without the switch they bound nothing."""
    switch, budget = raw.get("use-dynamic-batch-size"), raw.get("max-tokens-per-gpu")
    return {"batch.token_budget": count(budget)} if budget is not None and switch is not None and flag(switch) else {}


def write_slime_budget(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    """The switch, and the budget."""
    return {"use-dynamic-batch-size": True, "max-tokens-per-gpu": wanted["batch.token_budget"]}


def slime_engine(raw: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang loads ``--hf-checkpoint`` as it is saved: one in fp8 is held in fp8, while the trainer's weights come from ``--load`` or ``--ref-load``."""
    return {"rollout.weights": "fp8"} if re.search(r"[-_]fp8\b", str(next(iter(raw.values()))).rstrip("/"), re.IGNORECASE) else {}


def slime_sequence(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt and completion together, else the completion, which the prompt only adds to; of a run without a rollout what Megatron is told."""
    whole, completion = raw.get("rollout-max-context-len"), raw.get("rollout-max-response-len")
    if whole is not None:
        return {"batch.seq_len": count(whole)}
    if completion is not None:
        return {"batch.seq_len": count(completion) + count(raw.get("rollout-max-prompt-len") or 0)}
    return {"batch.seq_len": count(raw["seq-length"])} if raw.get("seq-length") is not None else {}


def write_slime_sequence(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    """The bound of both together."""
    return {"rollout-max-context-len": wanted["batch.seq_len"]}
