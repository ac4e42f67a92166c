"""What a framework does where nothing is said, of its version; a version that is not known gives the newest default and the others as alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from advisor.frameworks.bounds import Bounds, holds
from advisor.frameworks.table import Default, Table, of_framework, stack

Versions = tuple[tuple[str, str], ...]
# Frameworks that run Hugging Face models in a loop of their own: the layers' defaults hold, no trainer's do.
_LOOSE = ("transformers", "peft", "bitsandbytes", "deepspeed")
_MEGATRON = frozenset({"megatron-bridge", "megatron-lm"})


class Rule(Struct, frozen=True):
    """``value`` where every field of ``when`` has one of its values."""

    value: Any
    when: tuple[tuple[str, tuple[Any, ...]], ...]
    where: str
    alternatives: tuple[Any, ...] = ()


@cache
def tables_for(framework: str | None, generating: bool = False) -> tuple[Table, ...]:
    """The stack whose defaults hold for a job's ``framework.name``. NeMo stands for NeMo-RL only where the job generates or prefers."""
    if framework in _MEGATRON or (framework == "nemo" and not generating):
        return stack("megatron-lm")
    name = of_framework(framework) if framework else None
    if name is None:
        found: list[Table] = []
        for layer in _LOOSE:
            found += [t for t in stack(layer) if t not in found]
        return tuple(found)
    return stack(name)


@cache
def rules(framework: str | None, versions: Versions = (), generating: bool = False, bounds: Bounds = ()) -> Mapping[str, tuple[Rule, ...]]:
    """Rules by field, the uppermost layer's first. ``bounds``: what is known of versions that are not."""
    known, bounded = dict(versions), dict(bounds)
    found: dict[str, list[Rule]] = {}
    for table in tables_for(framework, generating):
        above = {field: len(entries) for field, entries in found.items()}  # an upper layer's default that holds is not opened by a lower layer's versions
        for default in table.defaults:
            matched = _matches(default, table, known, bounded)
            if matched is False or (matched is None and default.where_known):
                continue
            when = tuple((field, tuple(v) if isinstance(v, list) else (v,)) for field, v in default.when.items())
            for field, value in default.fields.items():
                frozen = tuple(value) if isinstance(value, list) else value
                rule = Rule(frozen, when, _where(default, table, known, bounded))
                _add(found.setdefault(field, []), rule, first=above.get(field, 0), open_version=matched is None)
    return {field: tuple(entries) for field, entries in found.items()}


def _add(entries: list[Rule], rule: Rule, *, first: int, open_version: bool) -> None:
    """A rule of another version of the same condition is an alternative where the version is not known; ``first``: where the table's own entries begin."""
    if open_version:
        for position, old in enumerate(entries[first:], first):
            if old.when == rule.when and old.value != rule.value:
                entries[position] = Rule(old.value, old.when, old.where, (*old.alternatives, rule.value))
                return
    entries.append(rule)


def _matches(default: Default, table: Table, known: Mapping[str, str], bounded: Mapping[str, str]) -> bool | None:
    """Whether a default's versions are the job's; ``None`` where the job's version is not known."""
    if default.versions is None:
        return True
    wanted = {table.package or table.name: default.versions} if isinstance(default.versions, str) else default.versions
    answers: list[bool | None] = []
    for package, specifier in wanted.items():
        text = known.get(package) or known.get(package.replace("-", "_"))
        if text is None:
            answers.append(holds(bounded[package], specifier) if package in bounded else None)
            continue
        try:
            answers.append(SpecifierSet(specifier).contains(Version(text.split("+")[0]), prereleases=True))
        except (InvalidVersion, InvalidSpecifier):
            answers.append(None)
    if False in answers:
        return False
    return None if None in answers else True


def _where(default: Default, table: Table, known: Mapping[str, str], bounded: Mapping[str, str]) -> str:
    version = known.get(table.package or table.name) or bounded.get(table.package or table.name)
    return f"{table.title}{f' {version}' if version else ''}: {default.source}"
