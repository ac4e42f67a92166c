"""Keys that were seen → facts of a job, through the tables of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from advisor.evidence import Fact, NotUnderstood
from advisor.frameworks.codecs import CODECS, SILENT, count
from advisor.frameworks.derive import DERIVATIONS
from advisor.frameworks.key import CHOSEN, Key, Unread
from advisor.frameworks.matching import EMPTY, matches, word
from advisor.frameworks.table import Entry, Table, canonical, common_harmless

_NOT_A_SCRIPTS = frozenset({"launch", "accelerate"})  # their keys mean nothing among a script's own arguments
_LAYERS = _NOT_A_SCRIPTS | {"deepspeed", "fsdp"}  # what a script runs on: their settings stand in files and calls of their own
# Sizes below which nothing runs: data loaders, launchers, vLLM (ParallelConfig, ge=1), Megatron (parallel_state) and torchtitan (>= 1) refuse them.
_AT_LEAST_ONE = frozenset({
    "batch.micro_batch", "batch.gradient_accumulation", "batch.generations", "rollout.tensor", "parallel.tensor", "parallel.pipeline", "parallel.context",
})  # fmt: skip
_ZERO_IS_OFF = frozenset({"tensor_parallel.autotp_size", "sequence_parallel_size", "ds.ring_attn_size"})  # deepspeed tensor_parallel/config.py; scripts
_NOT_LITERAL = "its value is no literal here; say what it is"


class Decoded(Struct, frozen=True):
    """Facts, one a field; the keys that no entry took; and the keys that were taken."""

    facts: tuple[Fact, ...]
    not_understood: tuple[NotUnderstood, ...]
    taken: frozenset[int]  # positions of the keys that an entry understood


class _Found(Struct, frozen=True):
    fact: Fact
    weak: bool
    order: int


def decode(keys: Sequence[Key], tables: Sequence[Table], name: str, *, last_wins: bool = False) -> Decoded:
    """Facts of the keys of one text.

    A key belongs to the first table of the stack that has an entry for it. For a field that several keys name, what is written
    plainly wins over comments and names, then the entry that stands first in its table, then the first key (the last one on a command line).
    """
    found: dict[str, _Found] = {}
    refused: list[NotUnderstood] = []
    taken: set[int] = set()
    joint: set[tuple[str, str, int]] = set()  # a group of keys is understood once
    unread: dict[tuple[str, str], str] = {}  # what a value that is no literal was to say: Trainer(model=model), where the model is named elsewhere
    firm = {canonical(key.path) for key in keys if not key.weak and not isinstance(key.value, Unread)}
    for position, key in enumerate(keys):
        if key.weak and key.scope == "comment" and canonical(key.path) in firm:
            continue  # a remark about what is set for real: "#--hf-checkpoint /m/Qwen3-30B-FP8"
        claimed = _claim(key, tables)
        if claimed is None:
            continue
        table, entries = claimed
        for entry in entries:
            number = table.entries.index(entry)
            if entry.field is not None:
                if isinstance(key.value, Unread):
                    unread[f"{name}:{key.line}", f"{key.path} = {key.value}"] = entry.field
                _plain(key, entry, number, name, found, refused, taken, position, last_wins)
            elif (mark := (table.name, key.scope, number)) not in joint:
                joint.add(mark)
                _joint(key, keys, entry, number, name, found, refused, taken, last_wins)
            elif position not in taken:  # a second call of the same kind
                taken.add(position)
                _again(key, keys, name, refused)
    refused = [item for item in refused if item.why != _NOT_LITERAL or not _said(unread.get((item.where, item.text)), found)]
    ordered = sorted(found.values(), key=lambda f: f.fact.field)
    return Decoded(tuple(f.fact for f in ordered), (*refused, *_rest(keys, tables, name, taken)), frozenset(taken))


def _said(field: str | None, found: Mapping[str, _Found]) -> bool:
    return field is not None and field in found and not found[field].weak


def _claim(key: Key, tables: Sequence[Table]) -> tuple[Table, tuple[Entry, ...]] | None:
    inherited: set[str] = set()  # tables whose arguments the call takes too, because its class is derived from theirs
    for table in tables:
        if key.scope in table.scopes and table.inherits:
            inherited.add(table.inherits)
        scope = table.scopes[0] if table.name in inherited and table.scopes else key.scope
        if entries := table.entries_for(key.path, scope):
            return table, entries
        if (
            not table.entries_for(key.path)
            and table.why_unmapped(key.path) is not None
            and (table.name not in _LAYERS or not key.scope or key.scope in _scopes(table))
        ):  # a script's argument is no layer's key
            return None
    if key.scope and not any(key.scope in _scopes(t) for t in tables):
        for table in (t for t in tables if t.name not in _NOT_A_SCRIPTS):  # a call that no table knows: its keys mean the usual
            if entries := table.entries_for(key.path):
                return table, entries
    return None


def _scopes(table: Table) -> frozenset[str]:
    return frozenset(table.scopes) | frozenset(s for e in table.entries for s in e.scopes)


def _plain(
    key: Key, entry: Entry, number: int, name: str, found: dict[str, _Found], refused: list[NotUnderstood], taken: set[int], position: int, last_wins: bool
) -> None:
    assert entry.field is not None
    taken.add(position)
    if isinstance(key.value, Unread) and entry.codec == "identifier" and (leaf := key.value.leaf) is not None:
        _put(found, _fact(entry.field, leaf, key, name, "the last part of a path whose beginning is not known"), key.weak or entry.weak, number, last_wins)
        return
    if isinstance(key.value, Unread):
        refused.append(NotUnderstood(f"{name}:{key.line}", f"{key.path} = {key.value}", _NOT_LITERAL))
        return
    if (key.value is None or (isinstance(key.value, str) and key.value.strip().lower() in EMPTY)) and entry.codec != "dtype":
        return
    codec = CODECS[entry.codec or "count"]
    try:
        value = codec.read(key.value) if key.value is not None else SILENT
    except (ValueError, TypeError, OverflowError) as error:
        if not key.weak:
            refused.append(NotUnderstood(f"{name}:{key.line}", f"{key.path} = {_short(key.value)}", f"{entry.field} was expected: {error}"))
        return
    if value is SILENT and _below_one(key, entry):
        refused.append(NotUnderstood(f"{name}:{key.line}", f"{key.path} = {key.value}", f"{entry.field} is at least 1, so this cannot run; it was not counted"))
    if value is not SILENT:
        _put(found, _fact(entry.field, value, key, name), key.weak or entry.weak, number, last_wins)


def _below_one(key: Key, entry: Entry) -> bool:
    if entry.field not in _AT_LEAST_ONE or key.weak or entry.weak or isinstance(key.value, bool):
        return False
    number = count(key.value)
    return number < 0 or (number == 0 and entry.key not in _ZERO_IS_OFF)


def _joint(
    key: Key,
    keys: Sequence[Key],
    entry: Entry,
    number: int,
    name: str,
    found: dict[str, _Found],
    refused: list[NotUnderstood],
    taken: set[int],
    last_wins: bool,
) -> None:
    seen = _gather(key, keys, entry, last_wins)
    taken.update(position for position, _ in seen.values())
    raw = {k: v.value for k, (_, v) in seen.items()}
    deciding = key
    weak, why = entry.weak, None
    guessed: tuple[str, ...] = ()
    if entry.derive is not None:
        fields, why = _derived(entry.derive, raw, key, name, refused)
        guessed = DERIVATIONS[entry.derive].inferred_fields
    else:
        case = next((c for c in entry.all_cases if matches(c, raw)), None)
        if case is None:
            _refuse(key, entry, raw, name, refused)
            return
        deciding = next((seen[k][1] for k, v in case.when.items() if v is not None and k in seen), key)
        fields, weak = case.fields, weak or case.weak
    for field, value in fields.items():
        _put(found, _fact(field, value, deciding, name, why if not guessed or field in guessed else None), deciding.weak or weak, number, last_wins)


def _again(key: Key, keys: Sequence[Key], name: str, refused: list[NotUnderstood]) -> None:
    """A key of a group that was understood already: a word where its value is another one."""
    first = next(k for k in keys if k.scope == key.scope and canonical(k.path) == canonical(key.path))
    if first.value != key.value and key.value is not None:
        refused.append(
            NotUnderstood(
                f"{name}:{key.line}", f"{key.path} = {_short(key.value)}", f"another {key.scope or 'line'} says {_short(first.value)}; that was counted"
            )
        )


def _gather(key: Key, keys: Sequence[Key], entry: Entry, last_wins: bool) -> dict[str, tuple[int, Key]]:
    """The entry's keys as they were seen, by the entry's own spelling: those of the same call first, then of the whole text."""
    own = {canonical(k): (entry.key if k in entry.also and entry.key else k) for k in entry.all_keys}
    seen: dict[str, tuple[int, Key]] = {}
    for position, other in enumerate(keys):
        name = own.get(canonical(other.path))
        if name is None or (other.scope != key.scope and not entry.keys):
            continue
        old = seen.get(name)
        if old is None or (other.scope == key.scope and (last_wins or old[1].scope != key.scope)):
            seen[name] = (position, other)
    return seen


def _derived(derive: str, raw: Mapping[str, Any], key: Key, name: str, refused: list[NotUnderstood]) -> tuple[Mapping[str, Any], str | None]:
    derivation = DERIVATIONS[derive]
    if derivation.of_paths:
        raw = {k: (v.leaf or v) if isinstance(v, Unread) else v for k, v in raw.items()}
    raw = {k: True if k in derivation.presence and v is not None and not _chosen(v) else v for k, v in raw.items()}
    settled = {path for path, other in derivation.stands_for if raw.get(other) is not None and not isinstance(raw[other], Unread)}
    for path, value in raw.items():
        if isinstance(value, Unread) and path not in derivation.tolerates and path not in settled:
            refused.append(NotUnderstood(f"{name}:{key.line}", f"{path} = {value}", _NOT_LITERAL))
    raw = {k: v for k, v in raw.items() if not isinstance(v, Unread)}
    if not raw:
        return {}, None
    if derivation.still is not None:
        refused.append(NotUnderstood(f"{name}:{key.line}", f"{key.path} = {_short(key.value)}", derivation.still))
    try:
        return derivation.read(raw), derivation.inferred
    except (ValueError, TypeError, OverflowError) as error:
        if not key.weak:  # a remark's sentence is no setting: "--vocab-size might be inferred"
            refused.append(NotUnderstood(f"{name}:{key.line}", f"{key.path} = {_short(key.value)}", str(error)))
        return {}, None


def _chosen(value: Any) -> bool:
    """Whether a condition chooses the value: nothing is settled by its being there."""
    return isinstance(value, Unread) and value.source == CHOSEN


def _refuse(key: Key, entry: Entry, raw: Mapping[str, Any], name: str, refused: list[NotUnderstood]) -> None:
    value = raw.get(entry.key or key.path, key.value)
    if isinstance(value, Unread):
        refused.append(NotUnderstood(f"{name}:{key.line}", f"{key.path} = {value}", _NOT_LITERAL))
    elif entry.values and value is not None and word(value) not in EMPTY:
        refused.append(NotUnderstood(f"{name}:{key.line}", f"{key.path} = {_short(value)}", f"known here are {', '.join(map(str, entry.values))}"))


def _put(found: dict[str, _Found], fact: Fact, weak: bool, order: int, last_wins: bool) -> None:
    old = found.get(fact.field)
    new = _Found(fact, weak, order)
    if old is None or (old.weak and not weak) or (old.weak == weak and (order < old.order or (order == old.order and last_wins))):
        found[fact.field] = new


def _fact(field: str, value: Any, key: Key, name: str, why: str | None = None) -> Fact:
    frozen = tuple(value) if isinstance(value, list) else value
    return Fact(field, frozen, "inferred" if why else "read", where=f"{name}:{key.line}", why=why, text=key.text)


def _rest(keys: Sequence[Key], tables: Sequence[Table], name: str, taken: set[int]) -> Iterable[NotUnderstood]:
    harmless = common_harmless()
    known = {(keys[position].scope, keys[position].path) for position in taken}  # said again later in the text: the last one was counted
    spoken = {keys[position].scope for position in taken}  # arguments of programs and calls that nothing was understood of are not listed
    for position, key in enumerate(keys):
        if position in taken or key.weak or key.value == {} or key.scope not in spoken or key.scope == "env" or (key.scope, key.path) in known:
            continue
        why = next((found for t in tables if (found := t.why_unmapped(key.path)) is not None), None)
        if why is not None and _is_off(key.value):
            continue
        if why is not None:
            yield NotUnderstood(f"{name}:{key.line}", f"{key.path} = {_short(key.value)}", why)
        elif not harmless.match(key.path) and not harmless.match(key.path.rsplit(".", 1)[-1]) and not any(t.is_harmless(key.path) for t in tables):
            yield NotUnderstood(f"{name}:{key.line}", f"{key.path} = {_short(key.value)}", "no table knows this key; it was not counted")


def _is_off(value: Any) -> bool:
    """Whether a setting that matters where it is on is off: a dropout of 0, a switch that is false."""
    return value is None or (isinstance(value, bool | int | float) and not value)


def _short(value: Any) -> str:
    text = str(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
