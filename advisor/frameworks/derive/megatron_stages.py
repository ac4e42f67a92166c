"""How Megatron divides its layers over pipeline stages, and how often each rank gets one.

Source: Megatron-LM at d98e8a64, training/arguments.py (virtual stages), core/transformer/pipeline_parallel_layer_layout.py (the layout's
notation), core/models/hybrid/hybrid_layer_allocation.py (``|`` in a layer pattern).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count
from advisor.frameworks.derive.megatron_hybrid import pattern_of

MOST = 100_000  # letters of a layout written out, or stages: far above any real one
_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d{1,5}))?|([A-Za-z])\*(\d{1,5})")


def megatron_stages(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``parallel.virtual_stages``, and ``parallel.pipeline_layout`` (layers of each stage in the model's order) where stages are uneven."""
    pipeline = count(raw.get("pipeline-model-parallel-size") or 1)
    written = _layout(str(raw.get("pipeline-model-parallel-layout") or "").strip("'\"")) or _piped(pattern_of(raw))
    if written and pipeline > 1 and len(written) % pipeline == 0:
        return {"parallel.pipeline_layout": written, **_virtual(len(written) // pipeline)}
    if raw.get("num-virtual-stages-per-pipeline-rank") is not None:
        return _virtual(count(raw["num-virtual-stages-per-pipeline-rank"]))
    layers = raw.get("num-layers")
    if layers is None or pipeline == 1:
        return {}
    first, last = (raw.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    if first is not None or last is not None:
        return _uneven(count(layers), pipeline, None if first is None else count(first), None if last is None else count(last))
    each = raw.get("num-layers-per-virtual-pipeline-stage")
    return _virtual(count(layers) // pipeline // count(each)) if each is not None else {}


def _virtual(number: int) -> dict[str, Any]:
    return {"parallel.virtual_stages": number} if number > 1 else {}


def _uneven(layers: int, pipeline: int, first: int | None, last: int | None) -> dict[str, Any]:
    left, middle = layers - (first or 0) - (last or 0), pipeline - (first is not None) - (last is not None)
    if left < 0 or middle < 0 or middle > MOST or (left and not middle) or (middle and left % middle):
        return {}
    ends = ((first,) if first is not None else (), (last,) if last is not None else ())
    return {"parallel.pipeline_layout": (*ends[0], *((left // middle,) * middle if middle else ()), *ends[1])}


def _layout(text: str) -> tuple[int, ...]:
    """Transformer layers of each stage of ``Et*3|(tt|)*6mL``: E embedding, t layer, m prediction layer, L loss, ``*n`` repeats."""
    text = re.sub(r"[\s,]", "", text)
    for _ in range(8):  # groups may stand in groups
        text, changed = _GROUP.subn(_repeated, text)
        if not changed or len(text) > MOST:
            break
    return tuple(stage.count("t") for stage in text.split("|")) if text and len(text) <= MOST and not set(text) - set("EtmL|") else ()


def _repeated(match: re.Match[str]) -> str:
    part, times = match[1] or match[3] or "", int(match[2] or match[4] or 1)
    return part * min(times, MOST // max(1, len(part)) + 1)  # one beyond the bound is enough to be refused


def _piped(pattern: str) -> tuple[int, ...]:
    main = pattern.split("/")[0]
    return tuple(len(part) for part in main.split("|")) if "|" in main else ()
