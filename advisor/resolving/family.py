"""Which trainer a framework builds on, as far as the rules of dtypes depend on it."""

from __future__ import annotations

ACCELERATE = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "ms-swift", "accelerate"})  # accelerate prepares the model
HF_LOADED = ACCELERATE | {"openrlhf", "fsdp-qlora", "custom", "deepspeed", "verl"}
MEGATRON = frozenset({"megatron-lm", "megatron-bridge"})
PURE = frozenset({"torchtune", "litgpt"})  # the weights' own dtype, no masters, no autocast
RL = frozenset({"grpo", "ppo", "rloo"})
ADAPTERS = frozenset({"lora", "dora"})
QUANTISED = frozenset({"nf4", "fp4", "int8", "gptq-int4", "awq-int4", "fp8", "mxfp4"})
FSDP = frozenset({"fsdp1", "fsdp2"})
ZERO = frozenset({"zero1", "zero2", "zero3"})
MEGATRON_STRATEGIES = frozenset({"megatron", "megatron-distributed", "megatron-fsdp"})
SHARDING = FSDP | ZERO | {"megatron-distributed", "megatron-fsdp"}
