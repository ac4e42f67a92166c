"""A config whose ``model_type`` has no reader: read by its keys, and said so; and the heads that ``architectures`` puts in place of a language head."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from msgspec.structs import replace

from advisor.architecture.families.encoders import classes_of
from advisor.architecture.keys import ConfigError, Keys
from advisor.architecture.pieces import linear
from advisor.architecture.shape import Architecture


def guessed(keys: Keys) -> Architecture:
    """The architecture read by what the keys look like: latent attention, experts, or a Llama-like decoder; ``unread`` says so.

    Raises:
        ConfigError: where the keys are not those of a decoder.
    """
    said = f"model_type {keys.model_type!r} has no reader" if keys.model_type else "the config has no model_type"
    text = keys.config.get("text_config")
    if isinstance(text, Mapping) and not keys.written("hidden_size", "d_model", "n_embd"):
        inner = keys.section("text_config")
        if inner is not None:
            keys.seen.update(keys.config)
            note = f"{said}; only its text_config was read, so its vision or audio parts are missing from every figure"
            read = _by_keys(inner)
            return replace(read, guessed=True, unread=(note, *read.unread, *inner.unread()))
    try:
        read = _by_keys(keys)
    except ConfigError as error:
        raise ConfigError(f"{said}, and its keys are not those of a decoder that can be read without one: {error}") from None
    kind = "with latent attention" if any(b.latent for b in read.blocks) else "with experts" if any(b.experts for b in read.blocks) else "like Llama"
    return replace(read, guessed=True, unread=(f"{said}; it was read from its keys as a decoder {kind}, so biases and norms may differ", *read.unread))


def _by_keys(keys: Keys) -> Architecture:
    if keys.model_type and keys.model_type in _readers():
        module = _readers()[keys.model_type]
    elif keys.written("kv_lora_rank"):
        module = "mla"
    elif (keys.optional("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", least=0) or 0) > 1:
        module = "moe"
    else:
        module = "llamalike"
    read: Architecture = importlib.import_module(f"advisor.architecture.families.{module}").read(keys)
    return read


def _readers() -> dict[str, str]:
    from advisor.architecture.families import READERS

    return READERS


def with_classes(keys: Keys, architecture: Architecture) -> Architecture:
    """A decoder built for sequence classification or as a reward model: ``score`` ``[classes, hidden]`` in place of the language head."""
    named = keys.config.get("architectures")
    keys.seen.add("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if architecture.classes is not None or not architecture.causal or architecture.encoder_decoder or "ForSequenceClassification" not in first:
        return architecture
    classes = classes_of(keys)
    outer = (*(t for t in architecture.outer if t.role != "head"), *linear("score", architecture.hidden, classes, "other"))
    return replace(architecture, outer=outer, classes=classes)
