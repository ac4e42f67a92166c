"""Which versions a failure's own text leaves possible: the form of PyTorch's message, and functions and files that only some releases have.

A message or a frame is printed by the library itself, so that it bounds the version even where nobody wrote one. Read in the releases of
transformers 4.31 to 5.24 (files and functions as named), and PyTorch ``c10/cuda/CUDACachingAllocator.cpp`` of 1.0 to 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from advisor.evidence import Evidence, Failure
from advisor.frameworks.bounds import Bounds

CARRIED = "of."  # before a package's name: a detail of a failure that a link brought
_MESSAGE = (
    (r"\(GPU \d{1,3}; [\d.]{1,12} [KMGT]?i?B(?:ytes)? total capacity", "torch", "<2.1"),  # reworded in 2.1
    (r"has a total capacty of", "torch", "<2.2"),  # spelt so in 2.1 alone
)
# transformers' utils/import_utils.py: releases that turn PyTorch off where it is older
_NEEDS = {"<2.1": "<4.52", "<2.2": "<5"}
_FRAME = (
    (r"transformers/core_model_loading\.py", ">=5"),
    (r"transformers/masking_utils\.py", ">=4.53"),
    (r"transformers/modeling_layers\.py", ">=4.52"),
    (r"transformers/modeling_utils\.py:load_shard_file", ">=4.52,<5"),
    (r"transformers/modeling_utils\.py:caching_allocator_warmup", ">=4.50"),
    (r"transformers/integrations/sdpa_attention\.py", ">=4.48"),
    (r"transformers/loss/loss_utils\.py", ">=4.46"),
    (r"transformers/trainer\.py:training_step: .*compute_loss\(model, inputs, num_items_in_batch", ">=4.46"),
    (r"transformers/trainer\.py:training_step: .*compute_loss\(model, inputs\)$", "<4.46"),
    (r"transformers/modeling_utils\.py:(?:_load_state_dict_into_model|_load_pretrained_model_low_mem)\b", "<4.50"),
    (r"transformers/modeling_utils\.py:_load_state_dict_into_meta_model\b", "<5"),
)


def bounds(evidence: Evidence | None) -> Bounds:
    """Package and specifier for each package whose version a failure bounds."""
    if evidence is None or not evidence.failures:
        return ()
    if "versions-shown" not in evidence.noted:
        found: dict[str, list[str]] = {}
        for failure in evidence.failures[:8]:
            for package, specifier in of_failure(failure):
                found.setdefault(package, []).append(specifier)
        evidence.noted["versions-shown"] = _joined(found)
    shown: Bounds = evidence.noted["versions-shown"]
    return shown


def of_failure(failure: Failure) -> Bounds:
    """The same of one failure; a link, which has no text, carries them as details (``of.torch``)."""
    found: dict[str, list[str]] = {}
    for package, specifier in _of(failure):
        found.setdefault(package, []).append(specifier)
    return _joined(found)


def _joined(found: dict[str, list[str]]) -> Bounds:
    return tuple((package, ",".join(dict.fromkeys(",".join(parts).split(",")))) for package, parts in sorted(found.items()))


def _of(failure: Failure) -> Iterable[tuple[str, str]]:
    for name, value in failure.details:
        if name.startswith(CARRIED):
            yield name.removeprefix(CARRIED), str(value)
    for form, package, specifier in _MESSAGE:
        if re.search(form, failure.text):
            yield package, specifier
            yield "transformers", _NEEDS[specifier]
    for frame in failure.frames:
        text = f"{frame.file}:{frame.function}: {frame.code}"
        for form, specifier in _FRAME:
            if re.search(form, text):
                yield "transformers", specifier
