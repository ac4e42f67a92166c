"""The optimizer, the dtype of its states, and how it steps."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft

_QUANTISED = frozenset({"adamw-8bit", "paged-adamw-8bit", "adamw-4bit"})


def settle(draft: Draft) -> None:
    """``optimizer.*``."""
    if draft.get("offload.optimizer") in ("cpu", "nvme") and draft.get("parallel.strategy") in family.ZERO:
        draft.assume("optimizer.name", "cpu-adam", "DeepSpeed steps offloaded states with its own Adam on the host", alternatives=("adamw",))
    if draft.get("method.kind") == "galore":
        draft.infer("optimizer.name", "galore-adamw", "GaLore projects gradients in its own AdamW")
    draft.table("optimizer.name")
    draft.default("optimizer.name", "adamw", draft.framework or "every framework")
    name, mixed = draft.get("optimizer.name"), draft.get("precision.mixed")
    if name in _QUANTISED:
        draft.infer("optimizer.states", "int8", f"{name} holds quantised states")
    if name == "cpu-adam" or draft.get("precision.master") == "fp32":
        draft.infer("optimizer.states", "fp32", "states are those of the fp32 master")
    trained = "method.adapter_dtype" if draft.get("method.kind") in family.ADAPTERS else "precision.weights"
    draft.infer("optimizer.states", draft.get(trained), "torch and bitsandbytes optimizers hold states in the trained parameter's dtype")
    if mixed in ("deepspeed", "megatron"):
        draft.infer("optimizer.implementation", "multi-tensor", "DeepSpeed's and Megatron's fused Adam")
    draft.table("optimizer.implementation")
    draft.default("optimizer.implementation", "foreach", "torch optim: foreach on CUDA unless fused is asked for", alternatives=("fused",))
    draft.default("optimizer.in_backward", False, "every framework", "not asked for")
