"""OpenRLHF's PPO trainer: which models are held beside the actor, and where. Read in openrlhf 0.11, openrlhf/cli/train_ppo_ray.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count, flag
from advisor.job import Job

_BUDGET = 16_192  # --train.max_tokens_per_gpu


def _on(raw: Mapping[str, Any], *keys: str) -> bool:
    return any(raw.get(key) is not None and flag(raw[key]) for key in keys)


def openrlhf_models(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Reference (a KL weight above 0, which is the default), critic (``gae``, the default) and reward (a model, not a URL or a function).

    On cards of their own unless everything is colocated. Without a group of actors it is another trainer, of which only an offloaded reference is said.
    """
    offloaded = _on(raw, "ref_reward_offload", "ref.offload")
    if not any(raw.get(key) is not None for key in ("actor_num_gpus_per_node", "actor.num_gpus_per_node", "colocate_all_models", "train.colocate_all")):
        return {"reference": "offloaded"} if offloaded else {}
    everything = _on(raw, "colocate_all_models", "train.colocate_all")
    weight = next((float(raw[k]) for k in ("init_kl_coef", "algo.kl.init_coef") if raw.get(k) is not None), 0.01)
    beside = everything or _on(raw, "colocate_actor_ref", "train.colocate_actor_ref")
    estimator = str(next((raw[k] for k in ("advantage_estimator", "algo.advantage.estimator") if raw.get(k) is not None), "gae"))
    elsewhere = any(raw.get(key) is not None for key in ("remote_rm_url", "reward.remote_url", "agent_func_path", "train.agent_func_path"))
    named = any(raw.get(key) is not None for key in ("reward_pretrain", "reward.model_name_or_path"))
    found = {
        "reference": "none" if weight == 0 else "offloaded" if beside and offloaded else "copy" if beside else "separate",
        "critic": "none" if estimator != "gae" else "copy" if everything else "separate",
        "reward": "none" if elsewhere or not named else "copy" if everything else "separate",
    }
    apart = _on(raw, "async_train", "train.async_enable")  # the engines then have cards of their own, whatever is colocated
    return found | {"rollout.placement": "colocated" if everything and not apart else "separate"}


def openrlhf_budget(raw: Mapping[str, Any]) -> dict[str, Any]:
    """With dynamic batches a pass is filled to a budget of tokens."""
    if not _on(raw, "use_dynamic_batch", "train.dynamic_batch_enable"):
        return {}
    budget = next((raw[k] for k in ("train_max_tokens_per_gpu", "train.max_tokens_per_gpu") if raw.get(k) is not None), _BUDGET)
    return {"batch.token_budget": count(budget)}


def write_openrlhf_budget(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    """The switch, and the budget."""
    return {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": wanted["batch.token_budget"]}
