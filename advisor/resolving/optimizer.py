"""The optimizer, the dtype of its states, and how it steps."""

from __future__ import annotations

from advisor.resolving.draft import Draft


def settle(draft: Draft) -> None:
    """``optimizer.*``."""
    if draft.get("offload.optimizer") in ("cpu", "nvme"):
        draft.assume("optimizer.name", "cpu-adam", "DeepSpeed steps offloaded states on the host", alternatives=("adamw",))
    draft.default("optimizer.name", "adamw", draft.framework or "every framework")
    name = draft.get("optimizer.name")
    if name in ("adamw-8bit", "paged-adamw-8bit", "adamw-4bit"):
        draft.infer("optimizer.states", "int8", f"{name} holds quantised states")
    elif name == "cpu-adam" or draft.get("precision.master") == "fp32":
        draft.infer("optimizer.states", "fp32", "states are those of the fp32 master")
    else:
        trained = draft.get("method.adapter_dtype") if draft.get("method.kind") in ("lora", "dora") else draft.get("precision.weights")
        draft.infer("optimizer.states", trained, "torch optimizers hold states in the parameter's dtype")
    mixed = draft.get("precision.mixed")
    implementation = "multi-tensor" if mixed in ("deepspeed", "megatron") else "foreach"
    draft.default(
        "optimizer.implementation",
        implementation,
        "apex / DeepSpeed fused Adam" if implementation == "multi-tensor" else "torch AdamW on CUDA",
        alternatives=("fused",),
    )
    draft.default("optimizer.in_backward", False, "every framework", "not asked for")
