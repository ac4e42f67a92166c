"""Micro batches whose inputs are on the card at once."""

from __future__ import annotations

from advisor.arithmetic.context import Context

ON_TRAINER = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "unsloth"})


def on_card(ctx: Context) -> int:
    """Of a step, all with transformers' Trainer since 4.46: it collects them first, and accelerate has put each on the device. Else one.

    Source: trainer.py ``get_batch_samples``; accelerate data_loader.py ``DataLoaderShard.__iter__``, send_to_device before the batch is given.
    """
    return ctx.accumulation if ctx.framework in ON_TRAINER and ctx.at_least("transformers", 4, 46) else 1
