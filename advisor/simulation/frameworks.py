"""Which frameworks run whose training loop."""

from __future__ import annotations

TRAINERS = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "unsloth"})  # transformers' Trainer: max_grad_norm 1.0, use_cache off
ON_ACCELERATE = TRAINERS | {"accelerate"}
