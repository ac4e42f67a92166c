"""The lines to change in a framework's own files, from the difference of two jobs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from advisor.frameworks.codecs import CODECS
from advisor.frameworks.derive import DERIVATIONS, RANK_KEY
from advisor.frameworks.syntax import for_windows, render
from advisor.frameworks.table import ANY, Case, Entry, Table, canonical, names, of_framework, stack
from advisor.job import Job, Section

Writer = Callable[[Table, Sequence[tuple[Entry, str, Any]]], "list[str] | None"]

_FALLBACK = "hf-trainer"  # whose lines are shown where no framework is named
_EITHER = frozenset({"accelerate"})  # the same setting stands in accelerate's file or in the DeepSpeed or FSDP config that it names: both are shown
_LOOSE = frozenset({"optimizer.implementation", "optimizer.states", "precision.mixed", "precision.reduce"})  # an engine may settle these otherwise
_NEWEST = "9999"
_NEVER_WRITTEN = ("framework.versions", "framework.name", "hardware.")


def settings(
    before: Job,
    after: Job,
    framework: str | None,
    *,
    follows: Container[str] = (),
    spelled: Mapping[str, str] | None = None,
    written_as: Writer | None = None,
) -> dict[str, tuple[str, ...]]:
    """Lines by layer, top first: ``{"trl": ("max_length=2048",), "deepspeed": ('{"zero_optimization": {"stage": 3}}',)}``.

    ``framework`` is a job's ``framework.name`` or a table's name. ``follows``: fields whose values only follow from others: they get no
    line, and where one key settles several fields they need not agree. Fields that no table of the stack can write have no line; the caller
    tells them by comparing. ``spelled``: keys as the user's files already have them, by :func:`canonical`; the line is that one, changed.
    ``written_as`` writes the pairs of a Python table otherwise (as flags of a command), or says with ``None`` that it cannot.

    Reading the lines back gives the same fields (a test holds that for every entry).
    """
    wanted = {field: value for field, value in changed(before, after).items() if field not in follows}
    if not wanted:
        return {}
    name = (of_framework(framework) or framework) if framework else _FALLBACK
    return lines(wanted, after, stack(name if name in names() else _FALLBACK), follows, spelled, written_as)


def lines(
    wanted: Mapping[str, Any],
    after: Job,
    tables: Sequence[Table],
    follows: Container[str] = (),
    spelled: Mapping[str, str] | None = None,
    written_as: Writer | None = None,
) -> dict[str, tuple[str, ...]]:
    """Each field through the first table of the stack that can write it."""
    open_fields = dict(wanted)
    hidden = {name for table in tables for name in table.hides}
    heirs = {table.inherits: table for table in reversed(tables) if table.inherits}
    pairs: dict[str, list[tuple[Entry, str, Any]]] = {}
    homes: dict[str, Table] = {}
    for table in tables:
        home = table
        while home.name in heirs:
            home = heirs[home.name]
        if table.name in hidden or home.syntax == "none":
            continue
        for entry in table.entries:
            if entry.read_only or (entry.weak and entry.derive is None) or not (entry.all_fields & open_fields.keys()) or not _in_force(table, entry, after):
                continue
            if entry.versions is not None and not _takes(entry.versions, table, after):
                continue
            for key, raw, fields in written(entry, open_fields, after, follows):
                pairs.setdefault(home.name, []).append((entry, spelled.get(canonical(key), key) if spelled else key, raw))
                homes[home.name] = home
                if table.name not in _EITHER and not entry.weak:  # a weak key only names the file that has the lines
                    for field in fields:
                        open_fields.pop(field, None)
    rendered = {}
    for name, found in ((name, _once(found)) for name, found in pairs.items()):
        flags = written_as(homes[name], found) if written_as is not None and homes[name].syntax == "python" else None
        rendered[name] = tuple(render(homes[name], found) if flags is None else flags)
    if "windows" in (after.framework.versions or {}):
        rendered = {name: tuple(for_windows(text)) for name, text in rendered.items()}
    return {name: text for name, text in rendered.items() if text}


def _once(pairs: list[tuple[Entry, str, Any]]) -> list[tuple[Entry, str, Any]]:
    """Each key of a call once, with what the last entry says: until transformers 5.10 ``fsdp`` divides, and the same word with ``offload`` moves out too."""
    last = {(entry.syntax, entry.scopes, key): (entry, key, raw) for entry, key, raw in pairs}
    return list(last.values())


def _takes(wanted: str | Mapping[str, str], table: Table, after: Job) -> bool:
    """Whether the job's releases take the key; one that is not known is taken for the newest."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    known = after.framework.versions or {}
    for package, specifier in ({table.package or table.name: wanted} if isinstance(wanted, str) else wanted).items():
        try:
            version = Version(str(known.get(package, _NEWEST)).split("+")[0])
        except InvalidVersion:
            version = Version(_NEWEST)
        if not SpecifierSet(specifier).contains(version, prereleases=True):
            return False
    return True


def _in_force(table: Table, entry: Entry, after: Job) -> bool:
    """Whether the job has what the part of the file is about: no DeepSpeed line for a job that FSDP divides."""
    key = entry.all_keys[0]
    for wanted in (table.writes_when.get(""), table.writes_when.get(key, table.writes_when.get(key.partition(".")[0]))):
        if wanted is not None and not all(after.get(field) in values for field, values in wanted.items()):
            return False
    return True


def changed(before: Job, after: Job) -> dict[str, Any]:
    """Fields whose value differs, with the value after. A value that is taken away is not among them."""
    found: dict[str, Any] = {}
    for section, content in asdict(after).items():
        old = getattr(before, section)
        if content is None or content == old or section in ("version", "name"):
            continue
        if isinstance(content, Section):
            for name, value in asdict(content).items():
                before_value = getattr(old, name, None)
                if value is None or value == before_value:
                    continue
                if isinstance(value, Section):
                    for inner, item in asdict(value).items():
                        if item is not None and item != getattr(before_value, inner, None):
                            found[f"{section}.{name}.{inner}"] = item
                else:
                    found[f"{section}.{name}"] = value
        else:
            found[section] = content
    return {field: value for field, value in found.items() if not field.startswith(_NEVER_WRITTEN)}


def written(entry: Entry, wanted: Mapping[str, Any], after: Job, follows: Container[str] = ()) -> Iterable[tuple[str, Any, frozenset[str]]]:
    """``(key, raw value, fields that it settles)`` for what the entry can write of ``wanted``."""
    if entry.field is not None:
        assert entry.key is not None
        try:
            raw = CODECS[entry.codec or "count"].write(wanted[entry.field])
        except KeyError:
            return  # a value that this key does not take: fp8 where only wider dtypes can be named
        yield entry.key, raw, frozenset({entry.field})
        return
    if entry.derive is not None:
        for key, raw in DERIVATIONS[entry.derive].write({f: v for f, v in wanted.items() if f in entry.all_fields}, after).items():
            yield (entry.key or entry.keys[0]) if key == RANK_KEY else key, raw, entry.all_fields
        return
    best = _best_case(entry, wanted, after, follows)
    if best is None:
        return
    fields = frozenset(best.fields)
    for key, raw in best.when.items():
        if raw is not None and raw != ANY and not (isinstance(raw, str) and raw.startswith("~")):
            yield key, raw, fields


def _best_case(entry: Entry, wanted: Mapping[str, Any], after: Job, follows: Container[str] = ()) -> Case | None:
    """The case that settles most of what is wanted and says least beside it; fields that only follow need not agree, but it is better if they do."""
    best: Case | None = None
    most = (0, 0, 0)
    for case in entry.all_cases:
        if case.read_only or case.weak or ANY in case.when.values():
            continue
        unequal = [field for field, value in case.fields.items() if not _equal(after.get(field), value)]
        if any(field in wanted or field not in follows or field not in _LOOSE for field in unequal):
            continue
        touched = len(case.fields.keys() & wanted.keys())
        rank = (touched, -len(unequal), -len(case.fields))
        if touched and rank > most:
            best, most = case, rank
    return best


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, tuple):
        return list(value) == list(wanted or ())
    if isinstance(value, Section):
        return bool(value.written() == wanted)
    return bool(value == wanted)
