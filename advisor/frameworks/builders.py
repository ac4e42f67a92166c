"""Names of torchtune's model builders: ``llama3_1_8b`` is Llama-3.1-8B."""

from __future__ import annotations

import re

FAMILIES = {
    "llama2": "meta-llama/Llama-2-{}-hf", "llama3": "meta-llama/Meta-Llama-3-{}", "llama3_1": "meta-llama/Llama-3.1-{}", "llama3_2": "meta-llama/Llama-3.2-{}",
    "llama3_3": "meta-llama/Llama-3.3-{}-Instruct", "llama3_2_vision": "meta-llama/Llama-3.2-{}-Vision-Instruct", "qwen2": "Qwen/Qwen2-{}",
    "qwen2_5": "Qwen/Qwen2.5-{}", "qwen3": "Qwen/Qwen3-{}", "mistral": "mistralai/Mistral-{}-v0.1", "gemma": "google/gemma-{}", "gemma2": "google/gemma-2-{}",
    "phi3": "microsoft/Phi-3-mini-4k-instruct", "phi4": "microsoft/phi-4", "llama4": "meta-llama/Llama-4-Scout-17B-16E",
}  # fmt: skip
_LOWER = frozenset({"gemma", "gemma2", "llama2"})  # whose hub ids write the size small
_NAME = re.compile(rf"(?:q?lora_)?({'|'.join(sorted(FAMILIES, key=len, reverse=True))})_(\d+(?:_\d+)?)(b|m)(?:_instruct|_base)?")


def hub_id(family: str, size: str) -> str:
    """The hub id of a family's model: ``("llama3_1", "8B")``."""
    return FAMILIES[family].format(size.lower() if family in _LOWER else size)


def of_builder(name: str) -> str | None:
    """The hub id of a builder's own name; ``None`` where it is none."""
    match = _NAME.fullmatch(name.strip())
    if match is None:
        return None
    family, digits, unit = match.groups()
    return hub_id(family, f"{digits.replace('_', '.')}{unit.upper()}")
