"""The job while it is being resolved: values by dotted path, and a Fact for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from advisor.evidence import Evidence, Fact, FactKind
from advisor.job import Eval, Job, Load, Resume, Rollout, Save, Section

_EMPTY: dict[str, Section] = {"load": Load(), "eval": Eval(), "save": Save(), "resume": Resume(), "rollout": Rollout()}
_DERIVED = frozenset({"default", "assumed"})
RESOLVER = "resolving"  # ``where`` of a fact that the resolver inferred itself, so that it is inferred anew after a change
_INTERNED: dict[tuple[Any, ...], Fact] = {}
_INTERNED_LIMIT = 20_000  # facts are small; this bounds a server that sees many jobs


class Draft:
    """Values by dotted path. ``settle`` writes only where nothing is written: what is stated or read is never changed."""

    def __init__(self, job: Job, evidence: Evidence, facts: dict[str, Fact]) -> None:
        self.evidence = evidence
        self.facts: dict[str, Fact] = {}
        self._job = job
        self._values: dict[str, Any] = {}
        self._new: dict[str, Any] = {}
        self._load(facts)
        self.framework: str | None = self._values.get("framework.name")
        self.versions: dict[str, str] = dict(self._values.get("framework.versions") or {})

    def _load(self, facts: dict[str, Fact]) -> None:
        read = {fact.field: fact for fact in reversed(self.evidence.facts)}
        self._dropped: set[str] = set()
        for section, content in self._job.__dict__.items():
            if content is None or section in ("version", "name"):
                continue
            pairs = [(f"{section}.{name}", value) for name, value in content.__dict__.items()] if isinstance(content, Section) else [(section, content)]
            for path, value in pairs:
                if value is None:
                    continue
                fact = facts.get(path) or read.get(path)
                if fact is not None and (fact.kind in _DERIVED or (fact.kind == "inferred" and fact.where == RESOLVER)):
                    self._dropped.add(path)
                    continue
                self._values[path] = value
                self.facts[path] = fact if fact is not None and fact.value == value else interned(path, value, "stated")
        for path, fact in read.items():
            if path not in self._values and fact.kind in ("read", "inferred", "stated"):
                self._values[path] = self._new[path] = fact.value
                self.facts[path] = fact

    @property
    def stated(self) -> Job:
        """The job as written: without what an earlier resolving derived."""
        return self._job

    def get(self, path: str, otherwise: Any = None) -> Any:
        """The value settled so far."""
        return self._values.get(path, otherwise)

    def known(self, path: str) -> bool:
        """Whether the field has a value."""
        return path in self._values

    def has(self, section: str) -> bool:
        """Whether an optional section is used."""
        return getattr(self._job, section) is not None or any(path.startswith(f"{section}.") for path in self._values)

    def settle(self, path: str, value: Any, kind: FactKind, why: str | None = None, *, where: str | None = None, alternatives: Iterable[Any] = ()) -> None:
        """Write ``value`` where nothing is written."""
        if path in self._values or value is None:
            return
        self._values[path] = self._new[path] = value
        if kind == "inferred" and where is None:
            where = RESOLVER
        self.facts[path] = interned(path, value, kind, where, why, tuple(a for a in alternatives if a != value))

    def default(self, path: str, value: Any, where: str, why: str | None = None, *, alternatives: Iterable[Any] = ()) -> None:
        """A default of a named framework and version."""
        self.settle(path, value, "default", why, where=where, alternatives=alternatives)

    def infer(self, path: str, value: Any, why: str) -> None:
        """What other values imply."""
        self.settle(path, value, "inferred", why)

    def assume(self, path: str, value: Any, why: str, *, alternatives: Iterable[Any] = ()) -> None:
        """A stated assumption."""
        self.settle(path, value, "assumed", why, alternatives=alternatives)

    def job(self) -> Job:
        """The resolved job. Values come from our own tables, which tests validate, so they are put in without validating anew."""
        updates: dict[str, dict[str, Any]] = {}
        for path in self._dropped:
            section, _, name = path.partition(".")
            updates.setdefault(section, {})[name] = None
        for path, value in self._new.items():
            section, _, name = path.partition(".")
            updates.setdefault(section, {})[name] = value
        changed: dict[str, Any] = {}
        for section, content in updates.items():
            if "" in content:
                changed[section] = content[""]
                continue
            current = getattr(self._job, section)
            changed[section] = (current if current is not None else _EMPTY[section]).model_copy(update=content)
        return self._job.model_copy(update=changed) if changed else self._job


def interned(path: str, value: Any, kind: FactKind, where: str | None = None, why: str | None = None, alternatives: tuple[Any, ...] = ()) -> Fact:
    """A Fact, the same object for the same content: resolving runs thousands of times in a plan."""
    key = (path, value, type(value), kind, where, why, alternatives)
    try:
        found = _INTERNED.get(key)
    except TypeError:  # a mapping: not hashable
        return Fact(path, value, kind, where, why, None, alternatives)
    if found is None:
        if len(_INTERNED) >= _INTERNED_LIMIT:
            _INTERNED.clear()
        found = _INTERNED[key] = Fact(path, value, kind, where, why, None, alternatives)
    return found
