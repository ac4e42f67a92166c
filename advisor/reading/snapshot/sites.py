"""Where an allocation came from, in words: the first frame that is not torch's own plumbing, and which part of memory such a place makes.

Frames are innermost first (torch ``CapturedTraceback``); C++ frames may stand before the Python ones. Memory that the backward pass allocates is
asked for in autograd's own thread, which has no Python frames.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.reading.masking import mask
from advisor.reading.pattern import pattern as lazily
from advisor.reading.tracebacks import package_path

MAX_FRAMES = 256  # of one allocation that are looked at
UNRECORDED = "no Python frame"  # autograd's own thread, or allocated before the history was recorded

_NATIVE = lazily(r"\.(?:so|cpp|cc|cu|cuh|h|hpp|c|pyx|dll)(?:\.[\d.]+)?$|^\?\?$|^<|^$", re.IGNORECASE)
_TELLING = lazily(
    r"^torch/(?:optim/|distributed/|utils/checkpoint\.py|cuda/graphs\.py|_inductor/|serialization\.py|nn/utils/clip_grad\.py|nn/parallel/|autograd/graph\.py)"
)
# the part of memory that a frame makes, in the order in which they are tried on each frame: innermost frame first
_PARTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (part, lazily(pattern))
    for part, pattern in (
        ("optimizer", r"^torch/optim/|^bitsandbytes/optim|^apex/optimizers|:initialize_optimizer_states$|^galore_torch/|^torchao/optim"),
        ("rollout-cache", r"^(?:vllm|sglang)/.*(?::_?(?:allocate|initialize)_kv_caches?\w*$|cache_engine\.py|memory_pool\.py)"),
        ("rollout-graphs", r"^(?:vllm|sglang)/.*(?:capture_model|cuda_?graph)|^torch/cuda/graphs\.py|^torch/_inductor/cudagraph_\w+\.py"),
        ("rollout-weights", r"^(?:vllm|sglang)/.*(?:model_loader|load_model|create_weights)"),
        (
            "logits",
            r":(?:\w*cross_entropy\w*|log_softmax|ForCausalLMLoss|fixed_cross_entropy|selective_log_softmax|_?get_per_token_logps\w*|logprobs_from_logits\w*|"
            r"entropy_from_logits\w*|get_batch_logps|vocab_parallel_\w+)$",
        ),
        (
            "attention",
            r":(?:scaled_dot_product_attention|sdpa_attention_forward|eager_attention_forward|_?flash_attention_forward|flex_attention\w*)$|^flash_attn",
        ),
        (
            "communication",
            r"^torch/distributed/(?:fsdp|_composable|distributed_c10d|tensor|_functional_collectives)|^torch/nn/parallel/distributed\.py|"
            r"^deepspeed/runtime/(?:zero|comm)|^deepspeed/comm|^megatron/core/distributed",
        ),
        ("weights", r":(?:from_pretrained|_load_pretrained_model|_?load_state_dict\w*|caching_allocator_warmup|from_config|_init_weights|materialize\w*)$"),
        ("weights", r"^torch/nn/modules/module\.py:(?:convert|_apply|to|cuda)$|^torch/serialization\.py|^safetensors/"),
        ("activations", r"^torch/utils/checkpoint\.py|^transformers/models/\w+/modeling_\w+\.py:forward$|^(?:megatron/core/transformer|torchtune/modules)/"),
    )
)


class Sites:
    """Sites of frame lists, each frame looked at once: snapshots repeat the same dictionaries millions of times."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[str, int, bool, str | None]] = {}
        self._lists: dict[tuple[int, ...], tuple[str, str]] = {}

    def of(self, frames: list[Any]) -> tuple[str, str]:
        """``("transformers/models/llama/modeling_llama.py:forward", "activations")``."""
        if not frames:
            return UNRECORDED, "unrecorded"
        key = tuple(map(id, frames[:MAX_FRAMES]))
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = self._find(frames[:MAX_FRAMES])
        return found

    def _find(self, frames: list[Any]) -> tuple[str, str]:
        place = first = None
        part: str | None = None
        for frame in frames:
            site, _, plumbing, makes = self.frame(frame)
            if not site:
                continue
            part = part or makes
            first = first or site
            if place is None and not plumbing:
                place = site
            if place and part:
                break
        if first is None:
            return UNRECORDED, "unrecorded"
        return place or first, part or "unattributed"

    def frame(self, frame: Any) -> tuple[str, int, bool, str | None]:
        """``(site, line, plumbing, part)``; an empty site for a frame that is no Python code."""
        found = self._frames.get(id(frame))
        if found is None:
            found = self._frames[id(frame)] = self._look(frame)
        return found

    @staticmethod
    def _look(frame: Any) -> tuple[str, int, bool, str | None]:
        if not isinstance(frame, Mapping):
            return "", 0, True, None
        file, name, line = str(frame.get("filename", ""))[:600], str(frame.get("name", ""))[:120], frame.get("line")
        if _NATIVE.search(file):
            return "", 0, True, None
        path = package_path(file)
        site = mask(f"{path}:{name}")
        part = next((part for part, pattern in _PARTS if pattern.search(site)), None)
        return site, line if type(line) is int and 0 <= line < 10**7 else 0, path.startswith("torch/") and _TELLING.search(path) is None, part
