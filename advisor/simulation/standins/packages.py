"""Offers the stand-ins under the names that transformers and peft import, in the probe's child process only."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
from types import ModuleType
from typing import Any

_ASKED = ("is_flash_attn_2_available", "is_flash_attn_greater_or_equal", "is_flash_attn_greater_or_equal_2_10")
VERSIONS = {"flash_attn": "2.7.3", "flash-attn": "2.7.3", "bitsandbytes": "0.43.3"}
known = dict(VERSIONS)  # what the stand-ins say they are, in this process


def offer(versions: dict[str, str]) -> None:
    """Put ``flash_attn`` and ``bitsandbytes`` in the place of the packages; call it before transformers loads a model's code."""
    from advisor.simulation.standins import bitsandbytes, flash_attention

    known.update({name: versions[name] for name in versions.keys() & VERSIONS.keys()})
    if "flash_attn" in sys.modules and getattr(sys.modules["flash_attn"], "__standin__", False):
        return
    _module("flash_attn", known["flash_attn"], flash_attention)
    _module("flash_attn.bert_padding", known["flash_attn"], flash_attention)
    functional = _module("bitsandbytes.functional", known["bitsandbytes"], bitsandbytes)
    nn = _module("bitsandbytes.nn", known["bitsandbytes"], bitsandbytes)
    whole = _module("bitsandbytes", known["bitsandbytes"], bitsandbytes)
    whole.nn, whole.functional = nn, functional
    asked = importlib.metadata.version
    setattr(importlib.metadata, "version", lambda name: known[name] if name in known else asked(name))  # noqa: B010  typed otherwise
    _say_flash_is_there()


def _module(name: str, version: str, source: ModuleType) -> Any:
    module = ModuleType(name)
    module.__dict__.update({key: value for key, value in vars(source).items() if not key.startswith("__")})
    module.__dict__.update(__version__=version, __standin__=True, __path__=[])
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    sys.modules[name] = module
    return module


def _say_flash_is_there() -> None:
    """transformers also asks for a CUDA device; its answer is kept by the modules that import the function, so it comes first."""
    import transformers.utils as utils
    from transformers.utils import import_utils

    if hasattr(import_utils, "_package_distribution_mapping"):
        import_utils._package_distribution_mapping()["flash_attn"] = ["flash-attn"]
    for owner in (import_utils, utils):
        for name in _ASKED:
            if hasattr(owner, name):
                setattr(owner, name, _yes)
    for held in [vars(module) for name, module in list(sys.modules.items()) if name.startswith("transformers") and isinstance(module, ModuleType)]:
        held.update({name: _yes for name in _ASKED if name in held})  # modules that were loaded before have kept the function itself
        matrix = held.get("FLASH_ATTENTION_COMPATIBILITY_MATRIX")
        if isinstance(matrix, dict) and isinstance(matrix.get(2), dict):
            matrix[2]["general_availability_check"] = _yes


def _yes(*_: Any, **__: Any) -> bool:
    return True
