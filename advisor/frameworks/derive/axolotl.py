"""axolotl: kernels, each with a switch of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import flag
from advisor.job import Job

LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
_KERNELS = {
    "liger_rms_norm": "rmsnorm", "liger_glu_activation": "swiglu", "liger_rope": "rope", "liger_layer_norm": "layernorm",
    "lora_mlp_kernel": "lora", "lora_qkv_kernel": "lora", "lora_o_kernel": "lora",
}  # fmt: skip


def axolotl_kernels(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Liger's and axolotl's own kernels, each switched by a key."""
    on = [name for key, name in _KERNELS.items() if raw.get(key) is not None and flag(raw[key])]
    return {"activations.kernels": tuple(dict.fromkeys(on))} if on else {}


def write_axolotl_kernels(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    """The switches of the wanted kernels, and the plugin without which Liger's are not known."""
    kernels = wanted["activations.kernels"]
    on: dict[str, Any] = {key: True for key, name in _KERNELS.items() if name in kernels}
    return {**on, **({"plugins": [LIGER_PLUGIN]} if any(key.startswith("liger_") for key in on) else {})}
