"""Techniques by id. :func:`all_techniques` imports every tier's file, so that what is registered is complete."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from advisor.techniques.technique import NotApplicable, Technique, registered, technique

MODULES = (
    "triage", "copies_loading", "copies_models", "copies_lifetime", "copies_rollout", "fallback_width", "fallback_kernels",
    "sharding", "parallelism", "offloading", "optimizers", "adapters", "losses", "recomputation", "batches", "spare", "hardware",
)  # fmt: skip
TIERLESS = frozenset({"upgrade", "correct-launch", "empty-cache", "exclude-vocabulary-layers"})  # take the tier of the cause that they cure


@cache
def all_techniques() -> dict[str, Technique]:
    """Every technique of the vocabulary, by id."""
    for name in MODULES:
        import_module(f"advisor.techniques.{name}")
    return registered()


__all__ = ["MODULES", "TIERLESS", "NotApplicable", "Technique", "all_techniques", "technique"]
