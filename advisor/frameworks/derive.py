"""Named derivations: what several keys mean together where a list of cases would not say it.

Each has both ways. ``read`` takes the raw values by key and returns values by field (empty: the keys settle nothing); ``write`` takes the
wanted fields and returns raw values by key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from advisor.frameworks.codecs import SILENT, count, dtype, flag, names, targets
from advisor.job import Job

AS_LOADED = "as the weights are loaded, unless something widens them"
_STAGE = re.compile(r"(?:zero|stage|ds_?z|(?<![a-z])z)[-_]?([0-3])(?!\d)", re.IGNORECASE)


def _nothing(_wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Derivation:
    """Both ways of a group of keys."""

    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Mapping[str, Any], Job], dict[str, Any]] = _nothing
    inferred: str | None = None  # why the fields are inferred rather than read
    inferred_fields: tuple[str, ...] = ()  # which of them; empty: all
    samples: tuple[Mapping[str, Any], ...] = ()


def deepspeed_file(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The name of a DeepSpeed config that was not given: ``ds_z3_offload_config.json``, ``zero2.json``, ms-swift's ``zero3``."""
    value = next((v for v in raw.values() if isinstance(v, str)), None)
    if value is None or (match := _STAGE.search(value.rsplit("/", 1)[-1])) is None:
        return {}
    stage = int(match.group(1))
    found: dict[str, Any] = {"parallel.strategy": f"zero{stage}" if stage else "ddp"}
    if "offload" in value.lower():
        found["offload.optimizer"] = "cpu"
        if stage == 3:
            found["offload.parameters"] = "cpu"
    return found


def load_dtype(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``from_pretrained(dtype=...)``: how the weights come in, and how they are held unless something widens them."""
    value = dtype(next(iter(raw.values())))
    return {} if value is SILENT else {"load.dtype": value, "precision.weights": value}


def _write_load_dtype(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    if "load.dtype" not in wanted:
        return {}
    return {"torch_dtype": {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[wanted["load.dtype"]]}


def prompt_and_completion(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt and completion bounds, which together bound the sequence."""
    bounds = [count(v) for v in raw.values() if v is not None]
    return {"batch.seq_len": sum(bounds)} if len(bounds) == 2 else {}


_KERNELS = {
    "liger_rms_norm": "rmsnorm", "liger_glu_activation": "swiglu", "liger_rope": "rope", "liger_layer_norm": "layernorm",
    "lora_mlp_kernel": "lora", "lora_qkv_kernel": "lora", "lora_o_kernel": "lora",
}  # fmt: skip


def axolotl_kernels(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Liger's and axolotl's own kernels, each switched by a key."""
    on = [name for key, name in _KERNELS.items() if raw.get(key) is not None and flag(raw[key])]
    return {"activations.kernels": tuple(dict.fromkeys(on))} if on else {}


def _write_axolotl_kernels(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    kernels = wanted["activations.kernels"]
    return {key: True for key, name in _KERNELS.items() if name in kernels}


def accelerate_processes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``num_processes`` counts all machines; a sharding strategy divides over them all."""
    if (processes := raw.get("num_processes")) is None:
        return {}
    total, machines = count(processes), count(raw.get("num_machines") or 1)
    found: dict[str, Any] = {"hardware.gpus_per_node": max(1, total // machines), "hardware.nodes": machines}
    strategy = str(raw.get("fsdp_config.fsdp_sharding_strategy") or "").upper()
    kind = str(raw.get("distributed_type") or "").upper()
    if (kind == "FSDP" and "HYBRID" not in strategy and strategy not in ("4", "5")) or (
        kind == "DEEPSPEED" and str(raw.get("deepspeed_config.zero_stage")) in "123"
    ):
        found["parallel.shard"] = total
    return found


def processes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``accelerate launch --num_processes 16 --num_machines 2``."""
    if raw.get("num_processes") is None:
        return {}
    return {"hardware.gpus_per_node": max(1, count(raw["num_processes"]) // count(raw.get("num_machines") or 1))}


def world(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``WORLD_SIZE`` counts all nodes."""
    if raw.get("WORLD_SIZE") is None:
        return {}
    return {"hardware.gpus_per_node": max(1, count(raw["WORLD_SIZE"]) // count(raw.get("NNODES") or 1))}


def expandable(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A framework's own switch for expandable segments."""
    return {"framework.allocator": {"expandable_segments": flag(next(iter(raw.values())))}}


_NEMO = {
    "tensor_model_parallel_size": "parallel.tensor", "pipeline_model_parallel_size": "parallel.pipeline", "context_parallel_size": "parallel.context",
    "expert_model_parallel_size": "parallel.expert", "expert_tensor_parallel_size": "parallel.expert_tensor",
}  # fmt: skip
_NEMO_DTENSOR = {"tensor_parallel_size": "parallel.tensor", "context_parallel_size": "parallel.context", "expert_parallel_size": "parallel.expert"}


def nemo_parallel(raw: Mapping[str, Any]) -> dict[str, Any]:
    """NeMo-RL holds two backends' settings side by side; those of the enabled one count."""
    megatron = {k.rsplit(".", 1)[-1]: v for k, v in raw.items() if ".megatron_cfg." in k and v is not None}
    dtensor = {k.rsplit(".", 1)[-1]: v for k, v in raw.items() if ".dtensor_cfg." in k and v is not None}
    by_megatron = flag(megatron["enabled"]) if "enabled" in megatron else bool(megatron) and not flag(dtensor.get("enabled", not megatron))
    if not by_megatron and not dtensor:
        return {}
    chosen, names = (megatron, _NEMO) if by_megatron else (dtensor, _NEMO_DTENSOR)
    found: dict[str, Any] = {}
    if "enabled" in chosen or by_megatron:
        found["parallel.strategy"] = "megatron-distributed" if by_megatron else "fsdp2"
    found |= {field: count(chosen[name]) for name, field in names.items() if name in chosen}
    if "sequence_parallel" in chosen:
        found["parallel.sequence"] = flag(chosen["sequence_parallel"])
    if "activation_checkpointing" in chosen:
        found["activations.checkpointing"] = "full" if flag(chosen["activation_checkpointing"]) else "none"
    if flag(chosen.get("cpu_offload", False)):
        found |= {"offload.parameters": "cpu", "offload.optimizer": "cpu", "offload.gradients": "cpu"}
    return found


def _write_nemo(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    megatron = str(after.parallel.strategy or "").startswith("megatron")
    prefix, names = ("policy.megatron_cfg.", _NEMO) if megatron else ("policy.dtensor_cfg.", _NEMO_DTENSOR)
    found: dict[str, Any] = {prefix + name: wanted[field] for name, field in names.items() if field in wanted}
    if "parallel.strategy" in wanted:
        found |= {"policy.megatron_cfg.enabled": megatron, "policy.dtensor_cfg.enabled": not megatron}
    if "parallel.sequence" in wanted:
        found[prefix + "sequence_parallel"] = wanted["parallel.sequence"]
    if "activations.checkpointing" in wanted:
        found[prefix + "activation_checkpointing"] = wanted["activations.checkpointing"] != "none"
    if wanted.get("offload.optimizer") == "cpu" and not megatron:
        found[prefix + "cpu_offload"] = True
    return found


_TORCHTUNE = {
    "llama2": "meta-llama/Llama-2-{}-hf", "llama3": "meta-llama/Meta-Llama-3-{}", "llama3_1": "meta-llama/Llama-3.1-{}", "llama3_2": "meta-llama/Llama-3.2-{}",
    "llama3_3": "meta-llama/Llama-3.3-{}-Instruct", "llama3_2_vision": "meta-llama/Llama-3.2-{}-Vision-Instruct", "qwen2": "Qwen/Qwen2-{}",
    "qwen2_5": "Qwen/Qwen2.5-{}", "qwen3": "Qwen/Qwen3-{}", "mistral": "mistralai/Mistral-{}-v0.1", "gemma": "google/gemma-{}", "gemma2": "google/gemma-2-{}",
    "phi3": "microsoft/Phi-3-mini-4k-instruct", "phi4": "microsoft/phi-4", "llama4": "meta-llama/Llama-4-Scout-17B-16E",
}  # fmt: skip


def torchtune_model(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A builder's name: ``torchtune.models.llama3_1.qlora_llama3_1_8b`` says the model, that adapters are trained, and on which base."""
    component = str(raw.get("model._component_") or "")
    match = re.fullmatch(r"torchtune\.models\.(\w+)\.(q?lora_)?(\w+?)(_instruct|_base)?", component)
    if match is None:
        return {}
    family, adapter, builder, _ = match.groups()
    found: dict[str, Any] = {}
    size = re.search(r"(\d+(?:_\d+)?)(b|m)$", builder)
    if family in _TORCHTUNE and (size or family in ("phi3", "phi4", "llama4")):
        text = f"{size.group(1).replace('_', '.')}{size.group(2).upper()}" if size else ""
        found["model.name"] = _TORCHTUNE[family].format(text.lower() if family in ("gemma", "gemma2", "llama2") else text)
    if adapter:
        found["method.kind"] = "dora" if raw.get("model.use_dora") is not None and flag(raw["model.use_dora"]) else "lora"
        found["method.base"] = "nf4" if adapter == "qlora_" or (raw.get("model.quantize_base") is not None and flag(raw["model.quantize_base"])) else "none"
        modules = tuple(raw.get("model.lora_attn_modules") or ())
        mlp = raw.get("model.apply_lora_to_mlp") is not None and flag(raw["model.apply_lora_to_mlp"])
        names = tuple("o_proj" if m == "output_proj" else str(m) for m in modules) + (("gate_proj", "up_proj", "down_proj") if mlp else ())
        if names:
            found["method.targets"] = targets(list(names))
    elif family in _TORCHTUNE:
        found["method.kind"] = "full"
    return found


def checkpoint_folder(raw: Mapping[str, Any]) -> dict[str, Any]:
    """litgpt keeps a checkpoint under its hub id: ``checkpoints/meta-llama/Llama-2-7b-hf``."""
    parts = [p for p in str(next(iter(raw.values()))).split("/") if p]
    if len(parts) < 2 or parts[-2] in ("tmp", "out", "checkpoints", "..", "."):
        return {"model.name": parts[-1]} if parts and len(parts) > 1 else {}
    return {"model.name": f"{parts[-2]}/{parts[-1]}"}


_LITGPT = {"lora_query": "q_proj", "lora_key": "k_proj", "lora_value": "v_proj", "lora_projection": "o_proj"}


def litgpt_targets(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A switch for each projection; ``lora_mlp`` is all of the block's."""
    on = [name for key, name in _LITGPT.items() if raw.get(key) is not None and flag(raw[key])]
    if raw.get("lora_mlp") is not None and flag(raw["lora_mlp"]):
        on += ["gate_proj", "up_proj", "down_proj"]
    if raw.get("lora_head") is not None and flag(raw["lora_head"]):
        on.append("lm_head")
    return {"method.targets": targets(on)} if on else {}


_TITAN = {
    ("llama3", "8B"): "meta-llama/Llama-3.1-8B", ("llama3", "70B"): "meta-llama/Llama-3.1-70B", ("llama3", "405B"): "meta-llama/Llama-3.1-405B",
    ("deepseek_v3", "16B"): "deepseek-ai/deepseek-moe-16b-base", ("deepseek_v3", "671B"): "deepseek-ai/DeepSeek-V3", ("qwen3", "0.6B"): "Qwen/Qwen3-0.6B",
    ("qwen3", "8B"): "Qwen/Qwen3-8B", ("qwen3", "32B"): "Qwen/Qwen3-32B", ("llama4", "17bx16e"): "meta-llama/Llama-4-Scout-17B-16E",
}  # fmt: skip


def titan_model(raw: Mapping[str, Any]) -> dict[str, Any]:
    """torchtitan names a family and a flavor."""
    name, flavor = str(raw.get("model.name") or ""), str(raw.get("model.flavor") or "")
    known = _TITAN.get((name, flavor))
    return {"model.name": known or f"{name} {flavor}".strip()} if name else {}


def titan_checkpointing(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``mode`` and, for selective, an operator policy or every n-th layer."""
    mode = str(raw.get("activation_checkpoint.mode") or "").lower()
    if mode not in ("none", "full", "selective"):
        return {}
    found: dict[str, Any] = {"activations.checkpointing": mode}
    option = str(raw.get("activation_checkpoint.selective_ac_option") or "")
    if mode == "selective" and option:
        found["activations.selective"] = {"policy": "op"} if option == "op" else {"every_nth_layer": count(option)}
    return found


def _write_titan_checkpointing(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    found: dict[str, Any] = {"activation_checkpoint.mode": after.activations.checkpointing} if "activations.checkpointing" in wanted else {}
    selective = after.activations.selective
    if selective is not None and (selective.policy or selective.every_nth_layer):
        found["activation_checkpoint.selective_ac_option"] = selective.policy or str(selective.every_nth_layer)
    return found


def megatron_recompute(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``--recompute-granularity``, ``--recompute-method``, ``--recompute-modules``."""
    granularity = str(raw.get("recompute-granularity") or "").lower()
    if raw.get("recompute-activations") is True and not granularity:
        granularity = "selective"
    if granularity == "full":
        return {"activations.checkpointing": "full"}
    if granularity == "selective":
        modules = raw.get("recompute-modules") or "core_attn"
        return {"activations.checkpointing": "selective", "activations.selective": {"ops": names(modules)}}
    return {}


def _write_megatron_recompute(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    kind = after.activations.checkpointing
    if kind == "full":
        return {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    if kind == "selective":
        ops = after.activations.selective.ops if after.activations.selective else None
        return {"recompute-granularity": "selective", **({"recompute-modules": list(ops)} if ops else {})}
    return {}


def rank_means_adapters(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A rank of 0 is how several frameworks say that no adapter is trained."""
    rank = count(next(iter(raw.values())))
    return {"method.kind": "lora", "method.rank": rank} if rank > 0 else {"method.kind": "full"}


def _write_rank(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    return {RANK_KEY: after.method.rank or 16 if after.method.kind in ("lora", "dora") else 0}


RANK_KEY = "@key"  # replaced by the entry's own key, which differs between frameworks


def accumulation(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Samples of a step over the micro batch and the ranks."""
    total, micro = raw.get("train.global_batch_size"), raw.get("train.micro_batch_size")
    devices = raw.get("devices") or 1
    if total is None or micro is None or not str(devices).isdigit():
        return {}
    steps = count(total) // (count(micro) * count(devices) * count(raw.get("num_nodes") or 1))
    return {"batch.gradient_accumulation": steps} if steps >= 1 else {}


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


def _write_verl_budget(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    return {"actor_rollout_ref.actor.use_dynamic_bsz": True, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": wanted["batch.token_budget"]}


def engines(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Any vLLM engine at all."""
    return {"rollout.engine": "vllm"} if count(next(iter(raw.values()))) > 0 else {}


def lisa(raw: Mapping[str, Any]) -> dict[str, Any]:
    """LISA trains a few layers at a time; 0 is off."""
    return {"method.kind": "lisa"} if count(next(iter(raw.values()))) > 0 else {}


def swift_dtype(raw: Mapping[str, Any]) -> dict[str, Any]:
    """ms-swift loads in this dtype and, unless fp16 or bf16 say otherwise, computes in it."""
    value = dtype(next(iter(raw.values())))
    return {} if value is SILENT else {"load.dtype": value, "precision.weights": value, "precision.compute": value}


def megatron_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The model's shape from Megatron's flags, in the keys of a Hugging Face config."""
    layers, hidden, heads = (raw.get(k) for k in ("num-layers", "hidden-size", "num-attention-heads"))
    if layers is None or hidden is None or heads is None:
        return {}
    gated = raw.get("swiglu") is True
    config: dict[str, Any] = {
        "model_type": "llama" if gated else "gpt2",
        "num_hidden_layers": count(layers),
        "hidden_size": count(hidden),
        "num_attention_heads": count(heads),
        "num_key_value_heads": count(raw.get("num-query-groups") or heads) if raw.get("group-query-attention") else count(heads),
        "intermediate_size": count(raw.get("ffn-hidden-size") or 4 * count(hidden)),
        "tie_word_embeddings": raw.get("untie-embeddings-and-output-weights") is not True,
    }
    vocabulary = raw.get("padded-vocab-size") or raw.get("vocab-size")
    if vocabulary is None or raw.get("num-experts") is not None or raw.get("multi-latent-attention"):
        return {}  # without a vocabulary, or with experts, the flags alone do not give the shape
    config["vocab_size"] = count(vocabulary)
    if not gated:
        config |= {"n_embd": config["hidden_size"], "n_layer": config["num_hidden_layers"], "n_head": config["num_attention_heads"]}
        config["n_positions"] = count(raw.get("max-position-embeddings") or 1024)
        config["n_inner"] = config["intermediate_size"]
    elif raw.get("max-position-embeddings") is not None:
        config["max_position_embeddings"] = count(raw["max-position-embeddings"])
    return {"model.config": config, "model.source": "megatron"}


def mpt_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of an MPT model from LLM Foundry's keys."""
    if raw.get("model.name") != "mpt_causal_lm" or any(raw.get(f"model.{k}") is None for k in ("d_model", "n_heads", "n_layers", "vocab_size")):
        return {}
    config = {k.removeprefix("model."): v for k, v in raw.items() if k != "model.name" and v is not None}
    return {"model.config": {"model_type": "mpt", **config}}


DERIVATIONS: Mapping[str, Derivation] = {
    "deepspeed-file": Derivation(deepspeed_file, inferred="by the name of the DeepSpeed config, which was not given"),
    "load-dtype": Derivation(
        load_dtype, _write_load_dtype, inferred=AS_LOADED, inferred_fields=("precision.weights",), samples=({"load.dtype": "bf16"}, {"load.dtype": "fp32"})
    ),
    "prompt-and-completion": Derivation(prompt_and_completion),
    "axolotl-kernels": Derivation(axolotl_kernels, _write_axolotl_kernels, samples=({"activations.kernels": ("rmsnorm", "swiglu")},)),
    "accelerate-processes": Derivation(accelerate_processes),
    "processes": Derivation(processes),
    "world": Derivation(world),
    "expandable": Derivation(expandable),
    "nemo-parallel": Derivation(
        nemo_parallel,
        _write_nemo,
        samples=({"parallel.strategy": "megatron-distributed", "parallel.tensor": 2}, {"parallel.strategy": "fsdp2", "parallel.tensor": 4}),
    ),
    "torchtune-model": Derivation(torchtune_model),
    "checkpoint-folder": Derivation(checkpoint_folder),
    "litgpt-targets": Derivation(litgpt_targets),
    "titan-model": Derivation(titan_model),
    "titan-checkpointing": Derivation(
        titan_checkpointing, _write_titan_checkpointing, samples=({"activations.checkpointing": "full"}, {"activations.checkpointing": "none"})
    ),
    "megatron-recompute": Derivation(megatron_recompute, _write_megatron_recompute, samples=({"activations.checkpointing": "full"},)),
    "rank-means-adapters": Derivation(rank_means_adapters, _write_rank, samples=({"method.kind": "lora", "method.rank": 16}, {"method.kind": "full"})),
    "accumulation": Derivation(accumulation),
    "verl-reference": Derivation(verl_reference),
    "verl-budget": Derivation(verl_budget, _write_verl_budget, samples=({"batch.token_budget": 16_384},)),
    "engines": Derivation(engines),
    "lisa": Derivation(lisa),
    "swift-dtype": Derivation(
        swift_dtype, _write_load_dtype, inferred=AS_LOADED, inferred_fields=("precision.weights", "precision.compute"), samples=({"load.dtype": "bf16"},)
    ),
    "megatron-config": Derivation(megatron_config),
    "mpt-config": Derivation(mpt_config),
}
