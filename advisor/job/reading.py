"""A job from YAML or JSON text, or from a mapping."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from advisor.job import spelling
from advisor.job.checking import JobError, validated
from advisor.job.known import fields
from advisor.job.whole import Job

MAX_JOB_BYTES = 1_000_000  # a job file is some kilobytes; this is far above any real one
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_job(source: str | bytes | Mapping[str, Any], *, where: str = "job") -> Job:
    """A job from YAML or JSON text or from a mapping.

    Raises:
        JobError: with the key or value that was wrong and the nearest key that is known.
    """
    if isinstance(source, Mapping):
        return validated(Job, dict(source), "")
    if len(source) > MAX_JOB_BYTES:
        raise JobError(f"{where} is larger than the {MAX_JOB_BYTES:,} bytes that a job file has at most")
    text = source.decode("utf-8", errors="replace") if isinstance(source, bytes) else source
    try:
        data, wrong = _loaded(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise JobError(f"{where} is neither YAML nor JSON: {_first(error)}") from None
    if wrong is not None:
        raise JobError(f"{where}: {wrong}")
    if not isinstance(data, Mapping):
        raise JobError(f"{where} holds {_kind_in_words(data)}; a job file is a mapping that starts with 'version: 1'")
    return validated(Job, dict(data), "")


def meant_as_job(source: str | bytes) -> bool:
    """Whether a text that :func:`read_job` refuses was meant as a job file: ``version: 1`` beside a section of it, or nothing but names that it has.

    Then a value or a name in it is wrong; of a framework's config neither holds.
    """
    try:
        data, _ = _loaded(source.decode("utf-8", errors="replace") if isinstance(source, bytes) else source)
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    if not isinstance(data, Mapping):
        return False
    names = {path for field in fields() for path in _prefixes(field)}
    sections = [name for name, value in data.items() if isinstance(value, Mapping) and name in names]
    written = [str(name) for name in data] + [f"{section}.{key}" for section in sections for key in data[section]]
    return bool(sections) and (data.get("version") == 1 or all(path in names for path in written))


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _first(error: Exception) -> str:
    """What a parser says first, with its line."""
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or (str(error).splitlines()[0] if str(error) else type(error).__name__)
    return f"{said}, line {mark.line + 1}" if mark is not None else str(said)


def _loaded(text: str) -> tuple[Any, str | None]:
    """The data, and what is wrong with how it is written. A few YAML aliases can stand for gigabytes; depth is bounded by the parser's own limit."""
    if text.lstrip().startswith("{"):
        twice: list[str] = []

        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                twice.extend(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
            return found

        data = json.loads(text, object_pairs_hook=once)
        return data, f"{twice[0]} is written twice in one object; keep the one that is meant" if twice else None
    wrong = spelling.of_yaml(text, _LOADER)
    return (None, wrong) if wrong is not None else (yaml.load(text, Loader=_LOADER), None)  # noqa: S506  a SafeLoader


def _kind_in_words(value: Any) -> str:
    names = {list: "a list", str: "a sentence", int: "a number", float: "a number", bool: "a truth value", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
