"""Which frameworks run whose training loop."""

from __future__ import annotations

TRAINERS = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "unsloth"})  # transformers' Trainer: max_grad_norm 1.0, use_cache off
CLIPS = TRAINERS | {"torchtitan"}  # torchtitan: train.py clip_grad_norm_, max_norm 1.0
ON_ACCELERATE = TRAINERS | {"accelerate"}
