"""Known models: their config, their counted parameters, and what of it was read in a source and what recalled.

One file a model in ``knowledge/models``; ``index.json`` maps hub ids and aliases to files, so that a look-up reads two small files.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct

from advisor import knowledge

# mirrors repeat a model's name with a suffix that says how it is stored; the shape is the same
_STORED_AS = re.compile(
    r"(?:[-_.](?:unsloth|bnb|4bit|8bit|dynamic|gptq|awq|int4|int8|fp8|fp16|bf16|gguf|hf|w4a16|w8a8|q4_k_m|nf4|mxfp4|exl2|quantized|dequantized|linearized|nvfp4|dcp|fp8-dynamic))+$",
    re.IGNORECASE,
)
_AT_STEP = re.compile(r"-intermediate-step-[\w.-]{1,40}$")  # checkpoints of one run: TinyLlama-1.1B-intermediate-step-715k-1.5T
_VARIANT = re.compile(r"[-_](?:instruct|chat|base|it|pt|sft|dpo)(?:[-_](?:hf|v\d(?:\.\d)?|\d{4}))?$", re.IGNORECASE)


class Preset(Struct, frozen=True):
    """A known model. ``match`` says how the asked name led here where it is not the model's own name.

    ``checkpoint_dtype``: the dtype of the floating tensors in its checkpoint where it is known to be fp32; else ``None``, which is 16 bit in
    all but few of the models here. ``checkpoint_dtype_source``: what that rests on, where no file was read for it. transformers 5 loads in it
    unless told otherwise (modeling_utils ``_get_dtype``, dtype "auto").
    """

    hub_id: str
    aliases: tuple[str, ...]
    config: dict[str, Any]
    parameters: int
    active_parameters: int | None
    verified: bool
    source: str
    note: str = ""
    checkpoint_dtype: str | None = None
    checkpoint_dtype_source: str | None = None
    match: str = ""


@cache
def index() -> dict[str, str]:
    """Lower-case hub id or alias → file stem."""
    data: dict[str, str] = json.loads(knowledge.path("models", "index.json").read_text(encoding="utf-8"))
    return data


@cache
def _tails() -> dict[str, str]:
    tails: dict[str, str] = {}
    for name, stem in index().items():
        tails.setdefault(name.rpartition("/")[2], stem)
    return tails


@cache
def _load(stem: str, match: str) -> Preset:
    data = json.loads(knowledge.path("models", f"{stem}.json").read_text(encoding="utf-8"))
    counted = data["parameters"]
    return Preset(
        hub_id=data["hub_id"],
        aliases=tuple(data.get("aliases", ())),
        config=data["config"],
        parameters=counted["total"],
        active_parameters=counted.get("active"),
        verified=bool(data.get("verified")),
        source=data.get("source") or "",
        note=data.get("note") or "",
        checkpoint_dtype=data.get("checkpoint_dtype"),
        checkpoint_dtype_source=data.get("checkpoint_dtype_source"),
        match=match,
    )


def find(name: str) -> Preset | None:
    """The model by hub id or alias (case is ignored), by a mirror's name, or by a local path that ends in a known name."""
    if not name or len(name) > 1000:
        return None
    known, asked = index(), name.strip().lower().rstrip("/\\")
    if asked in known:
        return _load(known[asked], "")
    tail = re.split(r"[/\\]", asked)[-1]
    if tail.startswith("models--"):  # the hub's cache folder: models--owner--name
        owner_name = tail.removeprefix("models--").replace("--", "/")
        if owner_name in known:
            return _load(known[owner_name], f"the cache folder {tail!r} names it")
        tail = owner_name.rpartition("/")[2]
    tails = _tails()
    if tail in tails:
        return _load(tails[tail], f"the last part of {name.strip()!r} is its name; the same shape is assumed")
    bare = _STORED_AS.sub("", tail)
    for candidate in (bare, _VARIANT.sub("", bare), _AT_STEP.sub("", bare)):
        for form in (candidate, f"{candidate}-instruct", f"{candidate}-hf", f"{candidate}-base", f"{candidate}-it", f"{candidate}-chat"):
            if form in tails:
                return _load(tails[form], f"{name.strip()!r} without its suffix is its name; the same shape is assumed")
    return None


def checkpoint_dtype(name: str | None) -> str | None:
    """The dtype of a model's checkpoint by the model's own name; ``None`` where it is not known, as it is not for a variant that was saved anew."""
    preset = find(name or "")
    if preset is None or preset.match or (_VARIANT.search((name or "").strip()) and not _VARIANT.search(preset.hub_id)):
        return None
    return preset.checkpoint_dtype


def checkpoint_dtype_recalled(name: str | None) -> bool:
    """Whether that dtype is only recalled: no file of the checkpoint was read for it."""
    preset = find(name or "")
    return preset is not None and preset.checkpoint_dtype is not None and preset.checkpoint_dtype_source is not None


def names() -> tuple[str, ...]:
    """Hub ids of all known models, sorted."""
    return tuple(sorted({stem.replace("__", "/", 1) for stem in index().values()}))


def nearest(name: str) -> str | None:
    """The known hub id nearest to a name that is not known; ``None`` where none is near. One with the same words and numbers comes first."""
    tails, asked = _tails(), re.split(r"[/\\]", name.strip().lower())[-1][:200]
    words = _words(asked)
    same = [tail for tail in tails if words and words in _words(tail)]
    close = difflib.get_close_matches(asked, same, n=1, cutoff=0.4) or difflib.get_close_matches(asked, list(tails), n=1, cutoff=0.6)
    return tails[close[0]].replace("__", "/", 1) if close else None


@lru_cache(maxsize=4_096)
def _words(name: str) -> str:
    """A name's words and numbers, each between bars: ``llama3`` is ``|llama|3|``, and not the beginning of ``llama-30b``."""
    found = re.findall(r"[a-z]+|\d+(?:\.\d+)?", name)
    return f"|{'|'.join(found)}|" if found else ""


def unknown(name: str | None) -> str:
    """The sentence where a model's shape is not known, with the nearest known name where there is one."""
    near = nearest(name) if name else None
    meant = f" (none is known as {name[:80]!r}; did you mean {near}?)" if name and near and find(name) is None else ""
    return f"the model's shape is not known: give model.name of a known model{meant}, or model.config (its config.json)"
