"""Tensors of routed and shared experts, as transformers 5 holds them, and as transformers 4 and hub code did.

transformers 5 holds the experts of a layer as fused 3-D parameters (``gate_up_proj`` ``[experts, 2 x width, hidden]``, ``down_proj``
``[experts, hidden, width]``): no ``nn.Linear``, so neither bitsandbytes nor PEFT's ``all-linear`` finds them. Here such a tensor is listed
with the shape of **one** expert, ``times`` the number of experts and ``linear=False``. transformers 4 held most families' experts as an
``nn.ModuleList`` of ``nn.Linear``: :func:`apart` gives that form.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from advisor.architecture.pieces import gated_mlp, parameter, plain_mlp
from advisor.architecture.shape import Architecture, Block, Tensor

# fused in transformers 4 too (parameters of their own there)
FUSED_ALWAYS = frozenset(("gpt_oss", "llama4_text", "llama4", "dbrx", "granitemoe", "granitemoehybrid", "granitemoeshared", "gemma4", "gemma4_text"))
# w1, w3, w2 in transformers 4; every other family there: gate_proj, up_proj, down_proj
_NUMBERED = frozenset(("mixtral", "phimoe", "minimax_m2"))
# the router was an nn.Linear in transformers 4
_LINEAR_ROUTER = frozenset(("mixtral", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "jamba", "minimax_m2"))


class Routed(Struct, frozen=True):
    """Experts of a layer: number, chosen a token, width of one, width of the shared ones together."""

    number: int
    chosen: int
    width: int
    shared_width: int


def expert_tensors(hidden: int, routed: Routed, *, bias: bool = False, transposed: bool = False, gated: bool = True) -> tuple[Tensor, ...]:
    """Routed experts (fused parameters) and the shared expert (``nn.Linear``)."""
    first = (2 if gated else 1) * routed.width
    name = "gate_up_proj" if gated else "up_proj"
    up = (hidden, first) if transposed else (first, hidden)
    down = (routed.width, hidden) if transposed else (hidden, routed.width)
    return (
        *parameter(name, up, "expert", times=routed.number),
        *(parameter(f"{name}_bias", (first,), "expert", times=routed.number) if bias else ()),
        *parameter("down_proj", down, "expert", times=routed.number),
        *(parameter("down_proj_bias", (hidden,), "expert", times=routed.number) if bias else ()),
        *(_shared(hidden, routed.shared_width, gated=gated) if routed.shared_width else ()),
    )


def _shared(hidden: int, width: int, *, gated: bool) -> tuple[Tensor, ...]:
    return gated_mlp(hidden, width, role="shared-expert") if gated else plain_mlp(hidden, width, names=("up_proj", "down_proj"), role="shared-expert")


def apart(architecture: Architecture) -> Architecture:
    """The same model with each expert's projections as layers of their own, as transformers 4 and hub code hold them."""
    if architecture.model_type in FUSED_ALWAYS or not any(block.experts for block in (*architecture.blocks, *architecture.mtp)):
        return architecture
    return replace(
        architecture,
        blocks=tuple(_apart(b, architecture.model_type) for b in architecture.blocks),
        mtp=tuple(_apart(b, architecture.model_type) for b in architecture.mtp),
    )


def _apart(block: Block, model_type: str) -> Block:
    if not block.experts:
        return block
    gate, up, down = ("w1", "w3", "w2") if model_type in _NUMBERED else ("gate_proj", "up_proj", "down_proj")
    tensors: list[Tensor] = []
    for tensor in block.tensors:
        if tensor.role == "router" and model_type in _LINEAR_ROUTER:
            tensors.append(replace(tensor, linear=len(tensor.shape) == 2))
        elif tensor.role != "expert":
            tensors.append(tensor)
        elif tensor.name == "gate_up_proj":
            half = (tensor.shape[0] // 2, tensor.shape[1])
            tensors.extend((replace(tensor, name=gate, shape=half, linear=True), replace(tensor, name=up, shape=half, linear=True)))
        else:
            tensors.append(replace(tensor, name=down if tensor.name == "down_proj" else tensor.name, linear=True))
    return replace(block, tensors=tuple(tensors))
