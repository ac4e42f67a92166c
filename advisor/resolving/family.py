"""Which trainer a framework builds on, as far as defaults depend on it."""

from __future__ import annotations

HF = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "ms-swift", "accelerate"})  # accelerate prepares the model
PEFT = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "ms-swift", "accelerate", "fsdp-qlora", "openrlhf", "verl", "custom"})
MEGATRON = frozenset({"megatron-lm", "megatron-bridge", "nemo"})
RL = frozenset({"grpo", "ppo", "rloo"})
SHARDED_BY_FSDP = frozenset({"fsdp1", "fsdp2"})
ZERO = frozenset({"zero1", "zero2", "zero3"})
MEGATRON_STRATEGIES = frozenset({"megatron", "megatron-distributed", "megatron-fsdp"})
SHARDING = SHARDED_BY_FSDP | ZERO | MEGATRON_STRATEGIES - {"megatron"}
