"""Ranks that say by being zero that nothing is adapted; adapters beside parts that are trained in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count
from advisor.frameworks.derive.derivation import RANK_KEY
from advisor.job import Job


def rank_means_adapters(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A rank of 0 is how several frameworks say that no adapter is trained."""
    rank = count(next(iter(raw.values())))
    return {"method.kind": "lora", "method.rank": rank} if rank > 0 else {"method.kind": "full"}


def write_rank(_wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The rank, or 0 where nothing is adapted."""
    return {RANK_KEY: after.method.rank or 16 if after.method.kind in ("lora", "dora") else 0}


def lisa(raw: Mapping[str, Any]) -> dict[str, Any]:
    """LISA trains a few layers at a time; 0 is off."""
    return {"method.kind": "lisa"} if count(next(iter(raw.values()))) > 0 else {}


def swift_towers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``lora_llm``: adapters in the language model only.

    Raises:
        ValueError: what is trained in full beside them has no word in the job.
    """
    if str(next(iter(raw.values()))).lower() == "lora_llm":
        raise ValueError("beside the adapters the vision tower and the aligner are trained in full, which was not counted")
    return {}
