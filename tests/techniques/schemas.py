"""What TRL and DeepSpeed accept, by name: read from the installed libraries and kept beside the tests, so that lines are held to it everywhere.

``python -m tests.techniques.schemas`` writes the file anew where both are installed. Facts only: names of fields and of keys.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("schemas.json")
TRL_CONFIGS = ("SFTConfig", "DPOConfig", "GRPOConfig")
ZERO = "deepspeed.runtime.zero.config"
OFFLOAD = "deepspeed.runtime.zero.offload_config"
DEEPSPEED = "0.19.8"  # the sources read; an unpacked archive does not name its version
TENSOR = "deepspeed.runtime.tensor_parallel.config"
ASKED = ("deepspeed.runtime.config", TENSOR)
CONSTANTS = ("deepspeed.runtime.constants", "deepspeed.runtime.activation_checkpointing.config", "deepspeed.runtime.zero.config")


def kept() -> Mapping[str, Any]:
    """The names as they were read."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def installed() -> dict[str, Any]:
    """The names of the libraries that are here; a library that is not raises ImportError."""
    trl, zero, offload = import_module("trl"), import_module(ZERO), import_module(OFFLOAD)
    keys: set[str] = set()
    for name in CONSTANTS:
        keys |= {value for constant, value in vars(import_module(name)).items() if constant.isupper() and isinstance(value, str) and value.isidentifier()}
    for name in ASKED:  # sections that the code asks for by name
        keys |= set(re.findall(r"""["'](\w+)["'] in (?:ds_)?config""", inspect.getsource(import_module(name))))
    return {
        "trl": {"version": trl.__version__, **{c: sorted(f.name for f in dataclasses.fields(getattr(trl, c))) for c in TRL_CONFIGS}},
        "deepspeed": {
            "version": DEEPSPEED,
            "keys": sorted(keys),
            "zero_optimization": _fields(zero.DeepSpeedZeroConfig),
            "offload_optimizer": _fields(offload.DeepSpeedZeroOffloadOptimizerConfig),
            "offload_param": _fields(offload.DeepSpeedZeroOffloadParamConfig),
            "tensor_parallel": _fields(import_module(TENSOR).TPTrainingConfig),
        },
    }


def _fields(model: Any) -> list[str]:
    return sorted({name for field, info in model.model_fields.items() for name in (field, info.alias) if name})


if __name__ == "__main__":
    FILE.write_text(json.dumps(installed(), indent=1) + "\n", encoding="utf-8")
