"""Layers of a model grouped into kinds, in the order in which the kinds first occur; and the sliding windows by layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.shape import Block

_K = TypeVar("_K", bound=Hashable)

# every n-th layer has full attention where the config neither lists layer_types nor names a pattern (config classes of transformers 5.24)
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3n_text": 5, "cohere2": 4, "olmo3": 4, "gpt_oss": 2, "exaone4": 4, "vaultgemma": 2}
_GATED_BY_SWITCH = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_next", "smollm3", "mimo", "qwen")
_DEFAULT_WINDOW = frozenset(_FULL_EVERY)  # families whose window is part of the model; elsewhere it must be written


def grouped(kinds: Sequence[_K], build: Callable[[_K, int], Block]) -> tuple[Block, ...]:
    """One block a kind; ``build(kind, count)`` makes it. Where kinds alternate each block says at which layers it stands."""
    at: dict[_K, list[int]] = {}
    for index, kind in enumerate(kinds):
        at.setdefault(kind, []).append(index)
    blocks = tuple(build(kind, len(places)) for kind, places in at.items())
    if all(places[-1] - places[0] + 1 == len(places) for places in at.values()):  # one kind after the other
        return blocks
    return tuple(replace(block, places=tuple(places)) for block, places in zip(blocks, at.values(), strict=True))


def windows(keys: Keys, layers: int) -> list[int | None]:
    """The sliding (or chunked) attention window of every layer, tokens; ``None``: full attention."""
    name = "attention_chunk_size" if keys.model_type == "llama4_text" else "sliding_window"
    keys.seen.update(("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern", name))
    window = keys.optional(name, least=0) if keys.written(name) or keys.model_type in _DEFAULT_WINDOW else None
    if not window or (keys.model_type in _GATED_BY_SWITCH and not keys.flag("use_sliding_window")):
        return [None] * layers
    kinds = keys.items("layer_types") if keys.written("layer_types") else None
    if kinds is not None:
        return [window if index < len(kinds) and kinds[index] in ("sliding_attention", "chunked_attention") else None for index in range(layers)]
    if keys.model_type == "llama4_text":
        return [None if (index + 1) % 4 == 0 else window for index in range(layers)]
    if keys.model_type in _GATED_BY_SWITCH:
        first = keys.optional("max_window_layers", least=0, most=MOST_LAYERS) or 0
        return [window if index >= first else None for index in range(layers)]
    every = keys.optional("sliding_window_pattern", "_sliding_window_pattern", most=MOST_LAYERS) if keys.written("sliding_window_pattern") else None
    every = every or _FULL_EVERY.get(keys.model_type)
    return [None if every and (index + 1) % every == 0 else window for index in range(layers)]
