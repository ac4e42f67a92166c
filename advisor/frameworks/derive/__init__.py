"""Named derivations: what several keys mean together where a list of cases would not say it.

Each has both ways. ``read`` takes the raw values by key and returns values by field (empty: the keys settle nothing); ``write`` takes the
wanted fields and the job after the change, and returns raw values by key.
"""

from __future__ import annotations

from collections.abc import Mapping

from advisor.frameworks.derive.adapters import lisa, rank_means_adapters, swift_towers, write_rank
from advisor.frameworks.derive.axolotl import axolotl_kernels, write_axolotl_kernels
from advisor.frameworks.derive.derivation import AS_LOADED, RANK_KEY, Derivation
from advisor.frameworks.derive.launching import (
    accelerate_context,
    accelerate_processes,
    axolotl_context,
    processes,
    world,
    write_accelerate_context,
    write_axolotl_context,
)
from advisor.frameworks.derive.litgpt import accumulation, checkpoint_folder, litgpt_targets, write_litgpt_targets
from advisor.frameworks.derive.loading import (
    bitsandbytes,
    classification_head,
    deepspeed_file,
    expandable,
    given_reference,
    load_dtype,
    swift_dtype,
    write_bitsandbytes,
    write_deepspeed_example,
    write_load_dtype,
)
from advisor.frameworks.derive.megatron import (
    megatron_offload,
    megatron_recompute,
    mpt_config,
    recompute_spread,
    write_megatron_offload,
    write_megatron_recompute,
)
from advisor.frameworks.derive.megatron_model import megatron_checkpoint, megatron_config, megatron_sequence, write_megatron_sequence
from advisor.frameworks.derive.megatron_stages import megatron_stages
from advisor.frameworks.derive.nemo import nemo_base, nemo_budget, nemo_parallel, write_nemo
from advisor.frameworks.derive.openrlhf import openrlhf_budget, openrlhf_models, write_openrlhf_budget
from advisor.frameworks.derive.pretraining import nanotron_config, nanotron_ranks, neox_config, olmo_config
from advisor.frameworks.derive.rollouts import (
    apart,
    engines,
    prompt_and_completion,
    slime_budget,
    slime_engine,
    slime_sequence,
    swift_sequence,
    verl_budget,
    verl_config,
    verl_micro,
    verl_recompute,
    verl_reference,
    verl_sft_budget,
    write_slime_budget,
    write_slime_sequence,
    write_swift_sequence,
    write_verl_budget,
)
from advisor.frameworks.derive.titan import titan_checkpointing, titan_model, titan_tokens, write_titan_checkpointing
from advisor.frameworks.derive.torchtune import torchtune_config, torchtune_generated, torchtune_model, torchtune_update, write_torchtune_model

__all__ = ["AS_LOADED", "DERIVATIONS", "RANK_KEY", "Derivation"]

DERIVATIONS: Mapping[str, Derivation] = {
    "deepspeed-file": Derivation(deepspeed_file, inferred="by the name of the DeepSpeed config, which was not given"),
    "deepspeed-example": Derivation(
        deepspeed_file,
        write_deepspeed_example,
        inferred="by the name of the DeepSpeed config, which was not given",
        samples=({"parallel.strategy": "zero3"}, {"parallel.strategy": "zero2"}),
    ),
    "bitsandbytes": Derivation(bitsandbytes, write_bitsandbytes, samples=({"method.base": "nf4"}, {"method.base": "fp4"}, {"method.base": "int8"})),
    "load-dtype": Derivation(
        load_dtype, write_load_dtype, inferred=AS_LOADED, inferred_fields=("precision.weights",), samples=({"load.dtype": "bf16"}, {"load.dtype": "fp32"})
    ),
    "given-reference": Derivation(given_reference, presence=("ref_model",)),
    "prompt-and-completion": Derivation(prompt_and_completion),
    "axolotl-kernels": Derivation(axolotl_kernels, write_axolotl_kernels, samples=({"activations.kernels": ("rmsnorm", "swiglu")},)),
    "accelerate-processes": Derivation(accelerate_processes),
    "accelerate-context": Derivation(
        accelerate_context,
        write_accelerate_context,
        samples=({"parallel.context": 4, "parallel.context_kind": "ulysses"}, {"parallel.context": 2, "parallel.context_kind": "ring"}),
    ),
    "axolotl-context": Derivation(axolotl_context, write_axolotl_context, samples=({"parallel.context": 4},)),
    "processes": Derivation(processes),
    "world": Derivation(world),
    "expandable": Derivation(expandable),
    "nemo-parallel": Derivation(
        nemo_parallel,
        write_nemo,
        samples=({"parallel.strategy": "megatron-distributed", "parallel.tensor": 2}, {"parallel.strategy": "fsdp2", "parallel.tensor": 4}),
    ),
    "nemo-budget": Derivation(nemo_budget),
    "nemo-base": Derivation(
        nemo_base,
        inferred="by the name of the file it builds on, which was not given",
        still="the config builds on another file; give it too, its values are not seen here",
    ),
    "torchtune-model": Derivation(torchtune_model, write_torchtune_model),
    "torchtune-config": Derivation(torchtune_config),
    "torchtune-update": Derivation(torchtune_update),
    "torchtune-generated": Derivation(torchtune_generated),
    "checkpoint-folder": Derivation(checkpoint_folder, of_paths=True),
    "litgpt-targets": Derivation(litgpt_targets, write_litgpt_targets, samples=({"method.targets": "all-linear"}, {"method.targets": "attention"})),
    "megatron-offload": Derivation(
        megatron_offload, write_megatron_offload, samples=({"offload.activations": "cpu", "offload.activation_modules": ("core_attn", "mlp_norm")},)
    ),
    "titan-model": Derivation(titan_model),
    "titan-tokens": Derivation(titan_tokens),
    "titan-checkpointing": Derivation(
        titan_checkpointing, write_titan_checkpointing, samples=({"activations.checkpointing": "full"}, {"activations.checkpointing": "none"})
    ),
    "megatron-recompute": Derivation(megatron_recompute, write_megatron_recompute, samples=({"activations.checkpointing": "full"},)),
    "recompute-spread": Derivation(recompute_spread),
    "rank-means-adapters": Derivation(rank_means_adapters, write_rank, samples=({"method.kind": "lora", "method.rank": 16}, {"method.kind": "full"})),
    "accumulation": Derivation(accumulation),
    "verl-reference": Derivation(verl_reference),
    "verl-sft-budget": Derivation(verl_sft_budget),
    "verl-config": Derivation(verl_config),
    "verl-micro": Derivation(verl_micro),
    "verl-recompute": Derivation(verl_recompute),
    "apart": Derivation(apart),
    "verl-budget": Derivation(verl_budget, write_verl_budget, samples=({"batch.token_budget": 16_384},)),
    "engines": Derivation(engines),
    "lisa": Derivation(lisa),
    "swift-towers": Derivation(swift_towers),
    "slime-engine": Derivation(slime_engine, of_paths=True, inferred="by the name of the checkpoint that the engine loads"),
    "swift-dtype": Derivation(
        swift_dtype, write_load_dtype, inferred=AS_LOADED, inferred_fields=("precision.weights", "precision.compute"), samples=({"load.dtype": "bf16"},)
    ),
    "megatron-config": Derivation(
        megatron_config,
        tolerates=("hf-checkpoint", "tokenizer-model", "tensor-model-parallel-size"),
        stands_for=(("moe-layer-freq", "FIRST_K_DENSE_REPLACE"),),
        presence=("merge-file",),
    ),
    "classification-head": Derivation(classification_head, tolerates=("num_labels",)),
    "megatron-stages": Derivation(megatron_stages),
    "megatron-sequence": Derivation(megatron_sequence, write_megatron_sequence, samples=({"batch.seq_len": 4_096},)),
    "megatron-checkpoint": Derivation(megatron_checkpoint, of_paths=True),
    "openrlhf-models": Derivation(openrlhf_models, presence=("remote_rm_url", "reward.remote_url", "agent_func_path", "train.agent_func_path")),
    "openrlhf-budget": Derivation(openrlhf_budget, write_openrlhf_budget, samples=({"batch.token_budget": 16_192},)),
    "swift-sequence": Derivation(swift_sequence, write_swift_sequence, samples=({"batch.seq_len": 4_096},)),
    "slime-budget": Derivation(slime_budget, write_slime_budget, samples=({"batch.token_budget": 9_216},)),
    "slime-sequence": Derivation(slime_sequence, write_slime_sequence, samples=({"batch.seq_len": 4_096},)),
    "mpt-config": Derivation(mpt_config),
    "neox-config": Derivation(neox_config),
    "olmo-config": Derivation(olmo_config),
    "nanotron-config": Derivation(nanotron_config),
    "nanotron-ranks": Derivation(nanotron_ranks, inferred="the product of the degrees, on nodes of eight cards"),
}
