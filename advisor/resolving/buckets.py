"""DeepSpeed's buckets: plain numbers, or "auto", which the Hugging Face integration works out from the model."""

from __future__ import annotations

from advisor.architecture import of_model
from advisor.resolving.draft import Draft

# Field, last name of the key, and the multiple of hidden x hidden (or of hidden) that "auto" stands for.
# transformers 5.24 integrations/deepspeed.py HfTrainerDeepSpeedConfig.trainer_config_finalize; accelerate fills only what says "auto" likewise.
_AUTO = (
    ("parallel.bucket_elements", "reduce_bucket_size", 1.0, 2),
    ("parallel.prefetch_elements", "stage3_prefetch_bucket_size", 0.9, 2),
    ("parallel.persistence_elements", "stage3_param_persistence_threshold", 10, 1),
)
# Their shipped ZeRO-3 configs say "auto" for all three (llamafactory examples/deepspeed, axolotl deepspeed_configs, ms-swift config/zero3.json).
_SHIPPED = frozenset({"llama-factory", "axolotl", "ms-swift"})


def settle(draft: Draft) -> None:
    """``parallel.*_elements`` of ZeRO."""
    said = {key.rsplit(".", 1)[-1]: where for where, key, value in draft.evidence.seen_keys if isinstance(value, str) and value == "auto"}
    by_name = draft.facts.get("parallel.strategy")
    shipped = draft.framework in _SHIPPED and draft.get("parallel.strategy") == "zero3" and by_name is not None and by_name.kind == "inferred"
    if said or shipped:
        _auto(draft, said, shipped)
    draft.table(
        "parallel.bucket_elements",
        "parallel.allgather_bucket_elements",
        "parallel.prefetch_elements",
        "parallel.max_live_elements",
        "parallel.persistence_elements",
    )


def _auto(draft: Draft, said: dict[str, str], shipped: bool) -> None:
    architecture = of_model(draft.model)
    if architecture is None:
        return
    for path, key, factor, power in _AUTO:
        if key in said or (shipped and not said):
            value = int(factor * architecture.hidden**power)
            formula = f"{factor:g} x hidden{'²' if power == 2 else ''} = {value:,}"
            draft.settle(path, value, "inferred", f'"auto": {formula}', where=said.get(key) or "the framework's shipped ZeRO-3 config")
