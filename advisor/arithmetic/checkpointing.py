"""What a block leaves behind after its forward pass: everything, its input only, or a chosen part."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.blocks.tape import Counted, Saved
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

FORWARD_ON = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST})
GROUPS = {"attn_norm": ("layernorm",), "mlp_norm": ("layernorm",), "expert_fc1": ("moe_expert",)}  # Megatron's offload names -> groups of a tape
FIRST_LAYERS = frozenset({
    "llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo", "olmo2", "cohere", "cohere2", "granite", "granitemoe", "granitemoehybrid",
    "granitemoeshared", "deepseek_v3", "starcoder2", "glm", "glm4", "helium", "bitnet", "diffllama", "phi4_multimodal",
})  # fmt: skip
WITHIN = frozenset({"fsdp-qlora"})
BEFORE_THEM = (2, 6)  # torch of early 2025: who runs an older one and does not name transformers is not taken for new
SOURCE = "torch.utils.checkpoint: keeps the inputs of the checkpointed block"


def checkpoints(ctx: Context, counted: Counted, layers: int, *, name: str = "layer inputs", tokens: int | None = None) -> Iterator[Holding]:
    """Inputs of checkpointed blocks, one a block, in the dtype of the residual stream; on the host where activations are offloaded."""
    count = ctx.tokens if tokens is None else tokens
    each = round(counted.input[0] * count)
    offloaded = ctx.job.offload.activations == "cpu"
    values = {"tokens": count, "bytes a token": round(counted.input[0]), "layers": layers}
    if offloaded:
        yield Holding("activations", f"{name} (offloaded)", each * layers, FORWARD_ON, "layers x tokens x bytes a token", values, SOURCE, device="host")
        layers = 1
    yield Holding("activations", f"{name} (checkpoints)", each * layers, FORWARD_ON, "layers x tokens x bytes a token", {**values, "layers": layers}, SOURCE)
    yield Holding("activations", "input of the first layer", each, frozenset({at.BACKWARD_FIRST}), "tokens x bytes a token", values, SOURCE)


def reentrant(ctx: Context) -> bool:
    """Whether checkpointing runs an autograd of its own in backward: as stated, else the default (transformers before 5: yes; since: no)."""
    said = ctx.job.activations.reentrant
    if said is not None:
        return said
    return ctx.source == "huggingface" and not ctx.at_least("transformers", 5)


def checkpoints_itself(ctx: Context) -> bool:
    """Whether a block recomputes from within what wraps it, so that the wrapper's forward pass runs once and with gradients.

    transformers' GradientCheckpointingLayer: Llama, Mistral, Qwen 2 and 3, Gemma, Phi-3 and others since 4.52, all but a few since 4.53; before,
    the model checkpointed the wrapped block from outside. fsdp_qlora wraps blocks within FSDP (train.py apply_activation_checkpointing).
    """
    if ctx.source != "huggingface":
        return False
    if ctx.framework in WITHIN:
        return True
    since = 52 if ctx.arch.model_type in FIRST_LAYERS else 53
    return ctx.at_least("transformers", 4, since, unknown=ctx.at_least("torch", *BEFORE_THEM))


def recomputed_layers(ctx: Context, layers: int) -> int:
    """How many of ``layers`` keep only their input: all, none, or every n-th (torchtitan ``selective_ac_option``: counted from 1)."""
    if ctx.checkpointing == "full":
        return layers
    selective = ctx.job.activations.selective
    if ctx.checkpointing == "selective" and selective is not None and selective.every_nth_layer:
        return layers // selective.every_nth_layer
    return 0


def kept_at_rest(ctx: Context, counted: Counted) -> tuple[tuple[Saved, ...], bool]:
    """What a block that is not wholly recomputed keeps until its backward pass, and whether that is less than everything.

    ``policy: op``: torchtitan's per-operation policy and the input; ``ops``: all but what the named groups make (Megatron
    ``recompute_modules``; ``self_attn`` and ``mlp`` of others' blocks, each in a wrapper of its own); selective without more: the score matrix
    only (``core_attn``).
    """
    selective = ctx.job.activations.selective
    if ctx.checkpointing != "selective" or (selective is not None and selective.every_nth_layer):
        return counted.saved, False
    if selective is not None and selective.policy == "op":
        return (*counted.by_policy, Saved("layer input", 0, counted.input)), True
    names = frozenset(selective.ops if selective is not None and selective.ops else ("core_attn",))
    return tuple(s for s in counted.saved if not names & frozenset(s.group.split())), True


def offloaded(ctx: Context, kept: tuple[Saved, ...]) -> tuple[tuple[Saved, ...], tuple[Saved, ...]]:
    """What goes to the host until the backward pass comes to its block, and what stays: all, or what the listed modules make."""
    if ctx.job.offload.activations != "cpu":
        return (), kept
    modules = ctx.job.offload.activation_modules
    if not modules:
        return kept, ()
    names = frozenset(group for m in modules for group in GROUPS.get(m, (m,)))
    away = tuple(s for s in kept if names & frozenset(s.group.split()))
    return away, tuple(s for s in kept if s not in away)
