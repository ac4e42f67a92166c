"""One text → one :class:`ConfigReading`: taken apart by its form, recognised, decoded through the tables of its stack."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache

from msgspec.structs import replace

from advisor.evidence import Fact, NotUnderstood
from advisor.frameworks.decode import decode
from advisor.frameworks.key import Key, Unread
from advisor.frameworks.table import Table, canonical, names, of_framework, stack, table
from advisor.reading.configs import (
    comments,
    cut_json,
    disagreements,
    from_json,
    from_notebook,
    from_overrides,
    from_python,
    from_shell,
    from_toml,
    from_yaml,
    job_file,
    model_config,
    own_program,
    trainer_state,
)
from advisor.reading.configs.config_reading import ConfigReading
from advisor.reading.configs.parsed import Parsed, RefusedError
from advisor.reading.configs.recognise import LAYERS, recognise
from advisor.reading.configs.shell_starters import STARTERS
from advisor.reading.pattern import pattern

_MAX_SEEN = 2_000
_PYTHON = pattern(
    r"^[ \t]*(?:from \w[\w.]* import |import \w|def \w|class \w|[\w\[\"'][\w.\[\]\"', ]{0,200}=\s*[\w.]*\(|[\w.]+\(|@\w|for \w+ in |with \w)", re.MULTILINE
)
_SECTION = pattern(r"^[\w.\-]+:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*(?:[ \t]+[\w.\-]+:|[ \t]*- )", re.MULTILINE)
_VERSION = pattern(r"^version: *1 *$", re.MULTILINE)  # how the advisor's own job file begins
_KINDS = {"shell": "shell command", "overrides": "overrides", "python": "Python", "notebook": "notebook", "yaml": "YAML", "json": "JSON", "toml": "TOML"}
_CONFIG_NAMES = (".yaml", ".yml", ".json", ".toml", ".py", ".sh", ".ipynb", ".cfg", ".conf", ".bash", ".jsonc", ".json5")
_LOG_NAMES = (".txt", ".log", ".out", ".err")


def read_config(name: str, text: str) -> ConfigReading | None:
    """Read a config, snippet or command; ``None`` where the text is none.

    Never raises for what is in the text: what is refused is said in ``problem``.
    """
    try:
        return _read(name, text.replace("\r\n", "\n"))
    except RefusedError as refused:
        return ConfigReading("unreadable", problem=str(refused))
    except RecursionError:
        return ConfigReading("unreadable", problem="nested deeper than any config; it was not read")


def _read(name: str, text: str) -> ConfigReading | None:
    lower = name.lower()
    stripped = text.strip()
    if not stripped:
        return None
    if stripped[0] in "{[" or lower.endswith((".json", ".ipynb", ".jsonc", ".json5")):
        found, is_json = _json(name, text, lower)
        if is_json:
            return found
    if _VERSION.search(text) and (parsed := from_yaml.parse(text)) is not None and job_file.is_job_file(parsed):
        return job_file.read_job_file(name, parsed)
    for attempt in _attempts(lower, stripped):
        parsed = attempt(text)
        if parsed is not None and (reading := _decoded(name, parsed, sure=lower.endswith(_CONFIG_NAMES))) is not None:
            return reading
    return None


def _json(name: str, text: str, lower: str) -> tuple[ConfigReading | None, bool]:
    """(what was read, whether the text is JSON so that no other form is tried)."""
    data, broken = from_json.load(text), None
    if data is None and (saved := cut_json.salvage(text)) is not None:
        data, broken = saved
    if isinstance(data, dict):
        found: ConfigReading | None
        if from_notebook.is_notebook(data):
            found = _decoded(name, from_notebook.parse(data))
        elif model_config.is_safetensors(data):
            found = model_config.read_safetensors(name, data)
        elif model_config.is_model(data):
            found = model_config.read_model(name, data) if broken is None else model_config.read_cut(name, data)
        elif trainer_state.is_state(data):
            found = trainer_state.read_state(name, data, {key.path: key.line for key in from_json.keys(text, data).keys})
        else:
            found = _decoded(name, from_json.keys(text, data))
        return (found if broken is None or found is None else cut_json.told(found, name, text, broken)), True
    if lower.endswith(".json"):
        return ConfigReading("unreadable", problem="neither JSON nor JSON with comments"), True
    return None, data is not None or lower.endswith((".jsonc", ".json5"))


def _attempts(lower: str, text: str) -> Iterable:  # type: ignore[type-arg]
    """The forms to try, likeliest first."""
    if lower.endswith((".yaml", ".yml")):
        return (from_yaml.parse, _lines)
    if lower.endswith(".toml"):
        return (lambda t: from_toml.parse(t, named=True), _lines)
    if lower.endswith(".py"):
        return (from_python.parse, _lines)
    if lower.endswith((".sh", ".bash", ".slurm", ".sbatch")) or text.startswith("#!"):
        return (from_shell.parse,)
    shell = bool(STARTERS.search(text))
    python = bool(_PYTHON.search(text))
    forms = []
    if shell:
        forms.append(_shell_lines)
    if python:
        forms.append(from_python.parse)
    elif _SECTION.search(text):
        forms.append(from_yaml.parse)  # a section with keys under it: read line by line they would lose their section
    return (*forms, from_toml.parse, from_overrides.parse, from_yaml.parse, _lines)


def _shell_lines(text: str) -> Parsed | None:
    """Commands within other text: only what starts like one, with its continuation lines."""
    kept: list[str] = []
    within = False
    for line in text.splitlines():
        within = within or bool(STARTERS.match(line))
        kept.append(line if within or line.lstrip().startswith("#") else "")
        within = within and line.rstrip().endswith("\\")
    parsed = from_shell.parse("\n".join(kept))
    return parsed if parsed.keys or parsed.programs else None


def _lines(text: str) -> Parsed | None:
    return from_overrides.parse(text, _known())


@cache
def _known() -> frozenset[str]:
    """Every key of every table, canonical."""
    return frozenset(key for n in names() for key in table(n).index)


def _decoded(name: str, parsed: Parsed, *, sure: bool = True) -> ConfigReading | None:
    if parsed.form in ("yaml", "json") and job_file.is_job_file(parsed):
        return job_file.read_job_file(name, parsed)
    said = list(comments.keys(parsed.comments)) if parsed.comments else []
    parsed.programs += comments.programs(parsed.comments)
    framework = recognise(parsed)
    keys = [*parsed.keys, *said]
    tables = stack(framework or "custom")
    if framework is None and parsed.form in ("yaml", "json", "toml"):
        keys += _leaves(parsed, tables)
    if framework is not None and (prefixes := table(framework).prefixes):
        keys = [_unprefixed(key, prefixes, tables) for key in keys]
    if framework is not None and parsed.form not in ("yaml", "json", "toml"):
        tables = (*tables, *(t for t in stack("custom") if t not in tables))
    if framework is None and not sure and not _worth(parsed, tables):
        return None
    if framework is None and not parsed.keys and not parsed.calls and not parsed.programs:
        return None
    decoded = decode(keys, tables, name, last_wins=parsed.form in ("shell", "overrides"))
    facts = {fact.field: fact for fact in decoded.facts}
    for fact in _called(parsed, tables, name):
        facts.setdefault(fact.field, fact)
    for fact in _started(parsed, tables, name):
        facts.setdefault(fact.field, fact)
    rank = facts.get("method.rank")
    if rank is not None and "method.kind" not in facts:
        facts["method.kind"] = Fact("method.kind", "lora", "read", where=rank.where, text=rank.text)  # a rank is given, so adapters are trained
    for field, fact in comments.facts(parsed.comments, name, own=parsed.form not in ("yaml", "json", "toml")).items():
        facts.setdefault(field, fact)
    top = table(framework) if framework else None
    runs = parsed.form in ("python", "notebook") and framework in ("accelerate", "deepspeed")  # a loop of its own over such a layer
    if top is not None and top.framework and (runs or top.name not in LAYERS):
        facts.setdefault("framework.name", _framework_fact(top, parsed, name))
    if top is not None and top.framework and of_framework(top.framework) != top.name:
        _own_defaults(top, facts, f"{name}:{parsed.keys[0].line if parsed.keys else 1}", _unsaid(keys, tables, decoded.not_understood))
    if framework is None and not facts and not sure:
        return None
    refused = (
        decoded.not_understood
        if framework or parsed.form in ("yaml", "json", "toml")
        else tuple(item for position, item in enumerate(decoded.not_understood) if "no table" not in item.why)
    )
    refused = tuple(dict.fromkeys((*disagreements.both_engines(keys, framework, name), *_lost(parsed, name), *refused)))
    seen = tuple((f"{name}:{k.line}", k.path, str(k.value) if isinstance(k.value, Unread) else k.value) for k in keys[:_MAX_SEEN])
    seen = (*seen, *((f"{name}:{line}", key, value) for line, key, value in own_program.findings(parsed, framework)))
    kind = f"{top.title} {_KINDS[parsed.form]}" if top else _KINDS[parsed.form]
    return ConfigReading(kind, framework, tuple(sorted(facts.values(), key=lambda f: f.field)), seen, refused, disagreements.both_halves(keys, facts, name))


def _unprefixed(key: Key, prefixes: tuple[str, ...], tables: tuple[Table, ...]) -> Key:
    """A key without the group that some of the framework's files put it in: ``train.lora_rank`` is ``lora_rank``."""
    head, dot, rest = key.path.partition(".")
    return replace(key, path=rest) if dot and head in prefixes and not any(t.entries_for(key.path) for t in tables) else key


_OF_OTHERS = pattern(r"(?:^|[._])(?:eval|val|valid|validation|test|ref|reference|reward|critic|teacher|draft|tokenizer|processor|ema)\w*\.", re.IGNORECASE)


def _leaves(parsed: Parsed, tables: tuple[Table, ...]) -> list[Key]:
    """Nested keys of a file that no table knows, by their last word: a launcher that nests ``training.per_device_train_batch_size`` means the usual.

    Only telling words are taken (of two parts or more), not those of an evaluation, a tokenizer or another model; weaker than anything plain.
    """
    found = []
    for key in parsed.keys:
        head, dot, leaf = key.path.rpartition(".")
        if not dot or "_" not in leaf.strip("_") or leaf.startswith("_") or _OF_OTHERS.search(head + ".") or any(t.entries_for(key.path) for t in tables):
            continue
        if any(t.entries_for(leaf) for t in tables if t.name in ("custom", "hf-trainer", "transformers", "peft", "bitsandbytes")):
            found.append(replace(key, path=leaf, weak=True))
    return found


def _worth(parsed: Parsed, tables: tuple[Table, ...]) -> bool:
    """Whether a text without a telling name and without a framework's marks is a config at all: two known keys, or a call or program."""
    known = {canonical(k.path) for k in parsed.keys if any(t.entries_for(k.path) for t in tables)}
    if parsed.form in ("python", "notebook"):
        called = {c.rsplit(".", 1)[-1] for c, _, _ in parsed.calls}
        return bool(known) or any(called & (frozenset(t.scopes) | frozenset(t.calls)) for t in tables)
    return len(known) >= (1 if parsed.form == "shell" else 2)


def _unsaid(keys: list[Key], tables: tuple[Table, ...], refused: tuple[NotUnderstood, ...]) -> frozenset[str]:
    """Fields that a key is for whose value was not understood: the default is not what runs there."""
    listed = {item.text.partition(" = ")[0] for item in refused}
    unread = [key for key in keys if key.path in listed and not key.weak]
    return frozenset(field for key in unread for t in tables for entry in t.entries_for(key.path) if not entry.weak for field in entry.all_fields)


def _lost(parsed: Parsed, name: str) -> Iterable[NotUnderstood]:
    """What could not be taken apart at all."""
    for line, text, why in parsed.notes:
        yield NotUnderstood(f"{name}:{line}", text, why)


def _own_defaults(top: Table, facts: dict[str, Fact], where: str, unsaid: frozenset[str]) -> None:
    """Defaults of a framework that the job can name only by what it is built on (slime is Megatron-LM there), so that resolving would not find them."""
    for default in top.defaults:
        held = ((facts[field].value if field in facts else None, wanted) for field, wanted in default.when.items())
        if all(value in (wanted if isinstance(wanted, list) else [wanted]) for value, wanted in held):
            for field, value in default.fields.items():
                if field in unsaid:
                    continue
                facts.setdefault(field, Fact(field, value, "inferred", where=where, why=f"{top.title}, by default: {default.source}"))


def _called(parsed: Parsed, tables: tuple[Table, ...], name: str) -> Iterable[Fact]:
    """What the mere presence of a call says."""
    for call, line, text in parsed.calls:
        leaf = call.rsplit(".", 1)[-1]
        for candidate in tables:
            fields = candidate.calls.get(call) or candidate.calls.get(leaf)
            if fields:
                for field, value in fields.items():
                    if "(..." not in text or field.endswith(".kind"):  # what a call leaves out with an ellipsis is not its default
                        yield Fact(field, value, "read", where=f"{name}:{line}", text=text)
                break


def _started(parsed: Parsed, tables: tuple[Table, ...], name: str) -> Iterable[Fact]:
    """What the program that a command starts says: a recipe for several devices shards."""
    for program, line, text in parsed.programs:
        for candidate in tables:
            for programs, fields in candidate.programs.items():
                if fields and fnmatch(program, programs):
                    for field, value in fields.items():
                        yield Fact(field, value, "read", where=f"{name}:{line}", text=text)


def _framework_fact(top: Table, parsed: Parsed, name: str) -> Fact:
    own = frozenset(top.scopes) | frozenset(top.calls)
    for call, line, text in parsed.calls:
        if call in own or call.rsplit(".", 1)[-1] in own:
            return Fact("framework.name", top.framework, "read", where=f"{name}:{line}", text=text)
    for _, line, text in parsed.programs:
        return Fact("framework.name", top.framework, "read", where=f"{name}:{line}", text=text)
    first: Key = parsed.keys[0] if parsed.keys else Key("", None, 1, "")
    return Fact("framework.name", top.framework, "inferred", where=f"{name}:{first.line}", why=f"its keys are those of {top.title}", text=first.text)
