"""The job while it is being resolved: values by dotted path, and a Fact for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace
from packaging.version import Version

from advisor.evidence import Evidence, Fact, FactKind
from advisor.frameworks.bounds import holds
from advisor.frameworks.defaults import rules
from advisor.job import Eval, Job, Load, Model, Resume, Rollout, Save, Section, fields
from advisor.job.division import Wrap
from advisor.resolving import family
from advisor.resolving.versions_shown import bounds

_EMPTY: dict[str, Section] = {"load": Load(), "eval": Eval(), "save": Save(), "resume": Resume(), "rollout": Rollout()}
_FIELDS = frozenset(fields())
# Sections with the names and paths of their fields; a single value has none.
_TWO_DEEP = tuple(dict.fromkeys(".".join(path.split(".")[:2]) for path in fields()))
_PATHS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = tuple(
    (section, tuple((path.partition(".")[2], path) for path in _TWO_DEEP if path.startswith(f"{section}.")))
    for section in Job.__struct_fields__
    if section not in ("version", "name")
)
_INNER = frozenset({Wrap})  # sections within a section of which something is derived
_OPEN = frozenset({"framework.versions", "framework.allocator"})  # whose inner names are free
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
        self._dropped: set[str] = set()
        self._sections: set[str] = set()
        self._load(facts)
        self.framework: str | None = self._values.get("framework.name")
        versions = dict(self._values.get("framework.versions") or {})
        versions |= {path.removeprefix("framework.versions."): value for path, value in self._new.items() if path.startswith("framework.versions.")}
        self.versions: dict[str, str] = dict(versions)
        generating = self.has("rollout") or self._values.get("objective") in family.RL | {"dpo"} or self._values.get("parallel.strategy") in family.FSDP
        self._rules = rules(self.framework, tuple(sorted(versions.items())), generating, bounds(evidence))

    def _load(self, facts: dict[str, Fact]) -> None:
        read = {fact.field: fact for fact in reversed(self.evidence.facts)} if self.evidence.facts else {}
        values, own = self._values, self.facts
        for section, paths in _PATHS:
            content = getattr(self._job, section)
            if content is None:
                continue
            self._sections.add(section)
            for name, path in paths or (("", section),):
                value = getattr(content, name) if name else content
                if value is None:
                    continue
                fact = facts.get(path) or read.get(path)
                if fact is None:
                    fact = interned(path, value, "stated")
                elif _derived(fact):
                    self._dropped.add(path)
                    continue
                elif fact.value != value:
                    fact = interned(path, value, "stated")
                values[path] = value
                own[path] = fact
                if type(value) in _INNER:
                    self._load_inner(path, value, facts, read)
        for path, fact in read.items():
            if (
                path not in values
                and (fact.kind in ("read", "inferred", "stated") or not _derived(fact))
                and (path in _FIELDS or path.rpartition(".")[0] in _OPEN)
            ):
                values[path] = self._new[path] = fact.value
                own[path] = fact
                self._sections.add(path.partition(".")[0])

    def _load_inner(self, path: str, section: Section, facts: dict[str, Fact], read: dict[str, Fact]) -> None:
        """The fields of a section within a section: known where they are written, left to be derived anew where they were derived."""
        for name in section.__struct_fields__:
            value, inner = getattr(section, name), f"{path}.{name}"
            if value is None:
                continue
            fact = facts.get(inner) or read.get(inner)
            if fact is None or fact.value != value or not _derived(fact):
                self._values[inner] = value
                self.facts[inner] = fact if fact is not None and fact.value == value else interned(inner, value, "stated")
            else:
                self._dropped.add(inner)

    @property
    def stated(self) -> Job:
        """The job as written: without what an earlier resolving derived."""
        return self._job

    @property
    def model(self) -> Model:
        """The model section as far as it is known: what is read beside the job included."""
        changes = {path.partition(".")[2]: value for path, value in self._new.items() if path.startswith("model.") and path.count(".") == 1}
        return replace(self._job.model, **changes) if changes else self._job.model

    def get(self, path: str, otherwise: Any = None) -> Any:
        """The value settled so far."""
        return self._values.get(path, otherwise)

    def known(self, path: str) -> bool:
        """Whether the field has a value."""
        return path in self._values

    def has(self, section: str) -> bool:
        """Whether an optional section is used."""
        return section in self._sections

    def reopen(self, path: str) -> None:
        """Set a value aside that only repeats another field, so that it is derived with the rest."""
        del self._values[path], self.facts[path]
        self._new.pop(path, None)
        self._dropped.add(path)

    def settle(self, path: str, value: Any, kind: FactKind, why: str | None = None, *, where: str | None = None, alternatives: Iterable[Any] = ()) -> None:
        """Write ``value`` where nothing is written."""
        if path in self._values or value is None:
            return
        self._values[path] = self._new[path] = value
        if kind == "inferred" and where is None:
            where = RESOLVER
        self.facts[path] = interned(path, value, kind, where, why, tuple(a for a in alternatives if a != value) if alternatives else ())

    def table(self, *paths: str, alternatives: Iterable[Any] = ()) -> None:
        """Defaults of the framework's stack, of its version: for each field the first rule whose conditions hold."""
        for path in paths:
            if path in self._values:
                continue
            for rule in self._rules.get(path, ()):
                if all(self._values.get(field) in wanted for field, wanted in rule.when):
                    self.settle(path, rule.value, "default", where=rule.where, alternatives=rule.alternatives or tuple(alternatives))
                    break

    def major_minor(self, package: str) -> tuple[int, int] | None:
        """The first two numbers of a package's stated version."""
        parts = self.versions.get(package, "").split(".")
        return (int(parts[0]), int(parts[1])) if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() else None

    def older(self, package: str, than: str) -> bool | None:
        """Whether a package's version is older than another: by what is stated, else by what the failure's own text leaves possible."""
        stated = self.major_minor(package)
        if stated is not None:
            return Version(".".join(map(str, stated))) < Version(than)
        shown = self.shown(package)
        return holds(shown, f"<{than}") if shown is not None else None

    def shown(self, package: str) -> str | None:
        """The versions of a package that the failure's own text leaves possible, as a specifier."""
        return dict(bounds(self.evidence)).get(package)

    def default(self, path: str, value: Any, where: str, why: str | None = None, *, alternatives: Iterable[Any] = ()) -> None:
        """A default of a named framework and version."""
        if path not in self._values:
            self.settle(path, value, "default", why, where=where, alternatives=alternatives)

    def infer(self, path: str, value: Any, why: str) -> None:
        """What other values imply."""
        if path not in self._values:
            self.settle(path, value, "inferred", why)

    def assume(self, path: str, value: Any, why: str, *, alternatives: Iterable[Any] = ()) -> None:
        """A stated assumption."""
        if path not in self._values:
            self.settle(path, value, "assumed", why, alternatives=alternatives)

    def job(self) -> Job:
        """The resolved job. Values come from our own tables, which tests validate, so they are put in without validating anew."""
        updates: dict[str, dict[str, Any]] = {}
        inner: dict[str, dict[str, Any]] = {}
        for path in self._dropped:
            section, _, name = path.partition(".")
            (inner if "." in name else updates).setdefault(section, {})[name] = None
        for path, value in self._new.items():
            section, _, name = path.partition(".")
            (inner if "." in name else updates).setdefault(section, {})[name] = value
        changed: dict[str, Any] = {}
        for section, content in updates.items():
            current = getattr(self._job, section)
            changed[section] = content[""] if "" in content else replace(current if current is not None else _EMPTY[section], **content)
        whole = replace(self._job, **changed) if changed else self._job
        return whole.but(**inner) if inner else whole  # facts three levels deep are rare, and validated


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


def _derived(fact: Fact) -> bool:
    """Whether an earlier resolving made this fact, so that it is made anew. What a reader assumed (one of several cards with a printed total) has its place."""
    return fact.kind == "default" or (fact.kind == "assumed" and fact.where is None) or (fact.kind == "inferred" and fact.where == RESOLVER)
