"""The form of ``knowledge/frameworks/<name>.yaml``, and finding the tables of a stack.

An entry maps keys to fields. ``field`` with a ``codec``: one key, one field. ``cases``: each case says which values of the keys stand
for which values of fields; the first case that matches is read, the first that fits is written. Values that stand for one key only are
written short, as ``values``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Literal

from msgspec import Struct, ValidationError, convert, field

from advisor.frameworks.codecs import CODECS
from advisor.frameworks.derive import DERIVATIONS
from advisor.knowledge import KnowledgeError, load_yaml, path

Syntax = Literal["python", "yaml", "json", "toml", "flags", "overrides", "env", "none"]
ANY = "*"  # in a case: the key has any value; a null says that it is absent


_FSDP = re.compile(r"^fsdp_config\.(?!fsdp_)")


@cache
def canonical(key: str) -> str:
    """One spelling for keys that frameworks treat as the same: hyphens on command lines, ``fsdp_`` before FSDP's keys, a nested DeepSpeed config."""
    key = key.replace("-", "_").removeprefix("deepspeed.") if key.startswith("deepspeed.") else key.replace("-", "_")
    return _FSDP.sub("fsdp_config.fsdp_", key)


class _Strict(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A part of a table: unknown keys are errors."""


class Default(_Strict, frozen=True, kw_only=True):
    """What a framework does where nothing is said. ``versions``: a specifier for the table's package, or one for each named package.

    ``where_known``: not even an alternative where the version is not known.
    """

    fields: Mapping[str, Any]
    versions: str | Mapping[str, str] | None = None
    where_known: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)  # field -> value or list of values that it must have
    source: str
    why: str | None = None


class Case(_Strict, frozen=True, kw_only=True):
    """Values of keys that stand for values of fields. ``read_only``: an older spelling, which is not written."""

    when: Mapping[str, Any]
    fields: Mapping[str, Any]
    read_only: bool = False
    weak: bool = False


class Entry(_Strict, frozen=True, kw_only=True):
    """One key, or several that are understood together. ``versions``: releases that take the key, as in :class:`Default`; for others it is not written."""

    versions: str | Mapping[str, str] | None = None
    key: str | None = None
    keys: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # other spellings of the key, read only
    scopes: tuple[str, ...] = ()  # calls in which the key has this meaning; empty: all of the table's
    field: str | None = None
    codec: str | None = None
    values: Mapping[Any, Mapping[str, Any]] | None = None
    older: tuple[str, ...] = ()  # values that newer versions no longer take: read, and never written
    cases: tuple[Case, ...] = ()
    derive: str | None = None
    fields: tuple[str, ...] = ()  # what the derivation can set
    read_only: bool = False
    weak: bool = False
    syntax: Syntax | None = None
    source: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        forms = [self.field is not None, self.values is not None, bool(self.cases), self.derive is not None]
        if sum(forms) != 1:
            raise ValueError(f"an entry has exactly one of field, values, cases, derive: {self.key or self.keys}")
        if self.derive is not None and self.derive not in DERIVATIONS:
            raise ValueError(f"unknown derivation {self.derive!r}")
        if self.field is not None and (self.codec or "count") not in CODECS:
            raise ValueError(f"unknown codec {self.codec!r}")
        if (self.cases and not self.keys) or (not self.cases and self.key is None and not self.keys):
            raise ValueError("cases need keys; field and values need a key")

    @cached_property
    def all_keys(self) -> tuple[str, ...]:
        """Every spelling that is read."""
        return (*((self.key,) if self.key else ()), *self.keys, *self.also)

    @cached_property
    def all_cases(self) -> tuple[Case, ...]:
        """The cases, with the short form written out."""
        if self.values is None:
            return self.cases
        assert self.key is not None
        return tuple(Case(when={self.key: raw}, fields=fields, read_only=self.read_only or raw in self.older) for raw, fields in self.values.items())

    @cached_property
    def all_fields(self) -> frozenset[str]:
        """Every field that the entry can set."""
        if self.field is not None:
            return frozenset({self.field})
        if self.derive is not None:
            return frozenset(self.fields)
        return frozenset(field for case in self.all_cases for field in case.fields)


class Table(_Strict, frozen=True, kw_only=True):
    """A framework, or a layer that frameworks sit on."""

    name: str
    title: str
    framework: str | None = None  # the job's framework.name; null for a layer
    package: str | None = None  # the distribution whose version decides
    layers: tuple[str, ...] = ()
    inherits: str | None = None  # the table whose keys its own config takes too
    hides: tuple[str, ...] = ()  # layers below that its users cannot write to
    writes_when: Mapping[str, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)  # a key or its first part ("": the table) -> what the job must have
    syntax: Syntax
    switches: Literal["valued", "bare"] = "valued"  # bare: a flag that is off is left out, no value stands behind it
    scopes: tuple[str, ...] = ()  # Python calls or commands whose arguments are this table's; the first is written
    marks: tuple[str, ...] = ()  # keys that by themselves say whose file this is
    file_marks: tuple[str, ...] = ()  # marks in files only: on command lines other programs take the key too
    prefixes: tuple[str, ...] = ()  # groups that some of its files put their keys in: train.lora_rank
    programs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # patterns of commands that start it, and what that says
    imports: tuple[str, ...] = ()
    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # a call's mere presence says so: DPOConfig -> objective: dpo
    source: str
    entries: tuple[Entry, ...] = ()
    defaults: tuple[Default, ...] = ()
    harmless: tuple[str, ...] = ()  # patterns of keys that do not touch memory
    unmapped: Mapping[str, str] = field(default_factory=dict)  # keys (or patterns of them) that matter and have no field: what they do

    @cached_property
    def index(self) -> Mapping[str, tuple[Entry, ...]]:
        """Entries by key."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            for key in entry.all_keys:
                found.setdefault(canonical(key), []).append(entry)
        return {key: tuple(entries) for key, entries in found.items()}

    @cached_property
    def _harmless(self) -> re.Pattern[str]:
        return re.compile("|".join(fnmatch.translate(p) for p in self.harmless) or r"(?!)")

    @cached_property
    def _unmapped(self) -> tuple[Mapping[str, str], tuple[tuple[re.Pattern[str], str], ...]]:
        plain = {canonical(key): why for key, why in self.unmapped.items() if "*" not in key}
        return plain, tuple((re.compile(fnmatch.translate(canonical(key))), why) for key, why in self.unmapped.items() if "*" in key)

    def why_unmapped(self, key: str) -> str | None:
        """What a key does that matters for memory and has no field; ``None`` where the table does not list it."""
        plain, patterns = self._unmapped
        name = canonical(key)
        return plain.get(name) or next((why for pattern, why in patterns if pattern.match(name)), None)

    def is_harmless(self, key: str) -> bool:
        """Whether a key is known not to touch memory."""
        return self._harmless.match(key) is not None

    def entries_for(self, key: str, scope: str = "") -> tuple[Entry, ...]:
        """The entries of a key within a call; without a scope, all of them."""
        found = self.index.get(canonical(key), ())
        if not scope:
            return found
        return tuple(e for e in found if scope in (e.scopes or self.scopes))


@cache
def names() -> tuple[str, ...]:
    """The names of all tables."""
    return tuple(sorted(file.stem for file in path("frameworks").glob("*.yaml") if not file.stem.startswith("_")))


@cache
def table(name: str) -> Table:
    """A table, checked.

    Raises:
        KnowledgeError: the file is missing or not in its form.
    """
    try:
        return convert(load_yaml("frameworks", f"{name}.yaml"), Table)
    except ValidationError as error:
        raise KnowledgeError(f"frameworks/{name}.yaml is not in its form: {error}") from None


@cache
def stack(name: str) -> tuple[Table, ...]:
    """A table and the layers below it, each once, top first."""
    found: list[Table] = []
    queue = [name]
    while queue:
        current = queue.pop(0)
        if any(t.name == current for t in found):
            continue
        found.append(table(current))
        queue += found[-1].layers
    return tuple(found)


_OTHERWISE_NAMED = {"nemo": "nemo-rl"}  # every other table is named as the job names its framework


@cache
def of_framework(framework: str) -> str | None:
    """The table whose jobs carry this ``framework.name``; only the tables of one stack are loaded, because reading them all takes a tenth of a second."""
    name = _OTHERWISE_NAMED.get(framework, framework)
    return name if name in names() and table(name).framework == framework else None


@cache
def common_harmless() -> re.Pattern[str]:
    """Keys that touch memory in no framework: learning rates, logging, paths of data."""
    return re.compile("|".join(fnmatch.translate(p) for p in load_yaml("frameworks", "_harmless.yaml")), re.IGNORECASE)
