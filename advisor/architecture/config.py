"""A Hugging Face ``config.json`` → :class:`Architecture`, and a job's model → the same, cached."""

from __future__ import annotations

import importlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from advisor import knowledge
from advisor.architecture import presets
from advisor.architecture.families import READERS
from advisor.architecture.families.experts import apart
from advisor.architecture.guess import guessed, with_classes
from advisor.architecture.keys import ConfigError, Keys
from advisor.architecture.shape import Architecture
from advisor.job import Model

__all__ = ["ConfigError", "of_model", "read"]

MAX_KEYS = 2_000
MAX_DEPTH = 12
_CACHE_SIZE = 512


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    """Shape-deciding defaults of transformers' config classes by ``model_type`` (transformers 5.24)."""
    data: dict[str, dict[str, Any]] = json.loads(knowledge.path("models", "defaults.json").read_text(encoding="utf-8"))
    return data


def defaults_of(kind: str) -> Mapping[str, Any]:
    """What a config class fills in where a config of this ``model_type`` leaves a key out; empty where the class is not known."""
    return _defaults().get(kind, {})


def _defaults_for(kind: str, source: str | None) -> Mapping[str, Any]:
    """Other people's modelling code has not transformers' sizes for defaults; what is switched on or off is taken from the family all the same."""
    known = _defaults().get(kind, {})
    if source in (None, "huggingface", "remote-code"):
        return known
    return {name: value for name, value in known.items() if isinstance(value, (bool, str, dict))}


def read(config: Mapping[str, Any], *, name: str | None = None, source: str | None = None, mlp: str | None = None, hub: bool = False) -> Architecture:
    """The architecture that a config describes, as transformers 5 builds it (remote code and Megatron: experts apart).

    ``source`` is whose modelling code runs and ``mlp`` (``gated`` or ``plain``) what the job says of it, as in the job's ``model``.
    ``hub``: the config is a hub model's own, so what it leaves out is its config class's default whoever's code runs it.
    A ``model_type`` without a reader is read by its keys, and ``unread`` says so.

    Raises:
        ConfigError: where a key that decides the shape is missing or wrong; the message names it. ``name`` is put in front.
    """
    try:
        keys = _keys(config, source, mlp, hub=hub)
        module = READERS.get(keys.model_type)
        if module is None:
            architecture = guessed(keys)
        else:
            architecture = importlib.import_module(f"advisor.architecture.families.{module}").read(keys)
        architecture = with_classes(keys, architecture)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}" if name else str(error)) from None
    if source in ("remote-code", "megatron"):
        architecture = apart(architecture)
    unread = (*architecture.unread, *keys.unread())
    if unread or keys.assumed:
        architecture = replace(architecture, unread=unread, assumed=tuple(dict.fromkeys(keys.assumed)))
    return architecture


def _keys(config: Mapping[str, Any], source: str | None, mlp: str | None, *, hub: bool) -> Keys:
    if not isinstance(config, Mapping):
        raise ConfigError(f"a model's config must be a mapping of keys to values, not {type(config).__name__}")
    _check_bounds(config, 0, [0])
    kind = config.get("model_type")
    if kind is not None and (not isinstance(kind, str) or len(kind) > 100):
        raise ConfigError("model_type must be a word such as 'llama'")
    keys = Keys(config, _defaults_for(kind or "", None if hub else source))
    keys.source, keys.gated = source or "", None if mlp is None else mlp == "gated"
    return keys


_architectures: OrderedDict[str, Architecture | None] = OrderedDict()


def of_model(model: Model, *, transformers: str | None = None) -> Architecture | None:
    """The architecture of a job's model: its config, else the preset of its name; ``None`` where neither is there or the name is unknown.

    ``transformers`` is the version that runs, where it is known: before 5 most families' experts are layers of their own
    (:func:`advisor.architecture.families.experts.apart`). The result is cached by value.

    Raises:
        ConfigError: where the config is written and cannot be read.
    """
    if model.config is None and not model.name:
        return None
    split = transformers is not None and transformers.partition(".")[0] in ("2", "3", "4")
    key = json.dumps(
        [model.name if model.config is None else None, model.config, model.source, model.mlp, model.classes, split], sort_keys=True, default=_jsonable
    )
    if key in _architectures:
        _architectures.move_to_end(key)
        return _architectures[key]
    found = _read_model(model)
    if split and found is not None:
        found = apart(found)
    _architectures[key] = found
    while len(_architectures) > _CACHE_SIZE:
        _architectures.popitem(last=False)
    return found


def _jsonable(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _read_model(model: Model) -> Architecture | None:
    if model.config is not None:
        return read(_with_head(model.config, model.classes), source=model.source, mlp=model.mlp)
    preset = presets.find(model.name or "")
    if preset is None:
        return None
    return read(_with_head(preset.config, model.classes), name=preset.hub_id, source=model.source, mlp=model.mlp, hub=True)


def _with_head(config: Mapping[str, Any], classes: int | None) -> Mapping[str, Any]:
    """The config as ``AutoModelForSequenceClassification`` reads it where the job says that a classifier is trained."""
    return config if classes is None else {**config, "architectures": ["ForSequenceClassification"], "num_labels": classes}


def _check_bounds(value: Any, depth: int, seen: list[int]) -> None:
    """Deep nests and endless configs are refused before anything is read."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"the config is nested more than {MAX_DEPTH} deep; a model's config has two or three levels")
    items = value.values() if isinstance(value, Mapping) else value
    for item in items:
        seen[0] += 1
        if seen[0] > 100_000:
            raise ConfigError("the config has more than 100,000 values; a model's config has some hundreds at most")
        if isinstance(item, (Mapping, list, tuple)):
            _check_bounds(item, depth + 1, seen)
