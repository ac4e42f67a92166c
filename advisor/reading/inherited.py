"""Configs that name one another: what a file says wins over its base (``defaults: grpo_math_1B.yaml``), and its content over what its name suggests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from advisor.evidence import NotUnderstood
from advisor.reading.merge import LAYER, PROSE, SCRIPT, Ranked

BY_NAME = "by the name of "  # how the tables' derivations from a file's name say so
_NAMES = frozenset({"defaults", "_base_", "base_config", "includes", "source", "config-name"})  # the last two: of a shell script, of a hydra command


def bases(seen_keys: Iterable[tuple[str, str, Any]]) -> frozenset[str]:
    """File names that configs among the texts name as what they build on."""
    found: set[str] = set()
    for _, key, value in seen_keys:
        if key == "config-name" and isinstance(value, str):
            found.add(value if value.endswith((".yaml", ".yml")) else f"{value}.yaml")
        elif key in _NAMES:
            found |= {item.rsplit("/", 1)[-1] for item in (value if isinstance(value, list) else [value]) if isinstance(item, str) and "." in item}
    return frozenset(found)


def beneath(ranked: Sequence[Ranked], named: frozenset[str]) -> list[Ranked]:
    """Facts of the base files under those of the files that build on them."""
    return [replace(item, rank=LAYER) if item.rank == SCRIPT and _file(item.fact.where) in named else item for item in ranked]


def without_given(items: Sequence[NotUnderstood], named: frozenset[str], given: Iterable[str]) -> list[NotUnderstood]:
    """What was not understood, less the bases that are among the texts after all."""
    there = named & {name.rsplit("/", 1)[-1] for name in given}
    return [item for item in items if not (item.text.partition(" = ")[0] in _NAMES and any(name.rpartition(".")[0] in item.text for name in there))]


def by_content(ranked: Sequence[Ranked], given: Iterable[str]) -> list[Ranked]:
    """The facts without what was concluded from a file's name, where the file itself was handed in or any text names ZeRO's stage outright."""
    files = [name.rsplit("/", 1)[-1] for name in given]
    said = {item.fact.field for item in ranked if item.rank > PROSE and str(item.fact.value).startswith("zero") and not _by_name(item)}
    settled = {
        item.fact.where
        for item in ranked
        if _by_name(item) and (item.fact.field in said or any(re.search(rf"(?<![\w.\-]){re.escape(name)}(?![\w.\-])", item.fact.text or "") for name in files))
    }
    return [item for item in ranked if not (_by_name(item) and item.fact.where in settled)]


def _by_name(item: Ranked) -> bool:
    return item.fact.kind == "inferred" and (item.fact.why or "").startswith(BY_NAME)


def _file(where: str | None) -> str:
    return (where or "").rpartition(":")[0].rsplit("/", 1)[-1]
