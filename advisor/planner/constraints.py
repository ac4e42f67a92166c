"""What the user allows, and in which order kinds of change are considered."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, field

from advisor.rules.rule import TIERS
from advisor.techniques import Technique


class Constraints(Struct, frozen=True):
    """What a plan may do. ``exclude`` names techniques that are out of the question; ``most_changes`` bounds the plan's length."""

    keep_full_training: bool = False
    keep_exact: bool = False
    no_new_dependency: bool = False
    keep_hardware: bool = False
    most_changes: int | None = None
    exclude: frozenset[str] = field(default_factory=frozenset)

    def permits(self, technique: Technique) -> bool:
        """Whether a technique may be tried at all; exactness that depends on the run is checked when it is applied."""
        if technique.id in self.exclude:
            return False
        if self.keep_full_training and technique.id in ADAPTERS_OF_FULL:
            return False
        if self.keep_exact and not technique.exact and technique.flags is None:
            return False
        if self.keep_hardware and technique.tier == "hardware":
            return False
        return not (self.no_new_dependency and technique.id in NEEDS_LIBRARY)

    def within(self, changes: int) -> bool:
        """Whether a plan may have so many changes."""
        return self.most_changes is None or changes <= self.most_changes


ADAPTERS_OF_FULL = frozenset({"lora", "dora", "qlora", "galore"})

# Libraries that a plain install of the trainer does not bring.
NEEDS_LIBRARY = frozenset({
    "zero-1", "zero-2", "zero-3", "offload-optimizer", "offload-nvme",  # deepspeed
    "eight-bit-optimizer", "paged-optimizer", "qlora", "double-quantization",  # bitsandbytes
    "fused-linear-loss", "fused-kernels", "tiled-mlp",  # liger-kernel
    "galore", "fp8-training", "lora", "dora", "sequence-packing",  # galore-torch, torchao or TransformerEngine, peft, flash-attn
})  # fmt: skip

EVERYTHING = frozenset({"copies", "fallback", "shard", "batch"})  # tiers that a search looks through
METHOD = 3  # how much else may be learned: another optimizer, a smaller rank, adapters, 4 bits
LAST_RESORT = 3  # the weight of it
# What is asked later than the rest of the tiers shard and batch: 1 waits for the host's link or the sequence's ring, 2 cuts matrices,
# layers or experts up, 3 is a last resort of its kind. "No tensor parallelism over PCIe before checkpointing."
WEIGHT = {
    "offload-optimizer": 1, "offload-parameters": 1, "offload-activations": 3, "paged-optimizer": 3, "tiled-mlp": 1, "context-parallel": 1,
    "ulysses": 1, "hybrid-shard": 1, "separate-rollout": 1, "offload-nvme": 3, "tensor-parallel": 2,
    "pipeline-parallel": 2, "expert-parallel": 2, "fp8-training": 2,
}  # fmt: skip
CUTTING = frozenset({"tensor-parallel", "context-parallel", "ulysses", "pipeline-parallel", "expert-parallel"})  # what cuts the computation itself
RECOMPUTING = frozenset({"gradient-checkpointing", "selective-checkpointing", "repair-checkpointing"})
NARROWING = frozenset({"narrow-gradient-buffer", "keep-kbit-narrow", "keep-wrapper-narrow"})  # free, but less exact than the framework's own form
DIVIDING = frozenset({"zero-1", "zero-2", "zero-3", "fsdp"})

# A change is riskier where it brings a library, touches how the job is launched, or depends on kernels that differ between versions.
RISK = {
    "fused-linear-loss": 1, "fused-kernels": 1, "eight-bit-optimizer": 2, "sequence-packing": 2, "zero-1": 2, "zero-2": 2, "zero-3": 2,
    "fsdp": 2, "optimizer-in-backward": 2, "selective-checkpointing": 1, "offload-optimizer": 3, "offload-parameters": 4, "offload-nvme": 5,
    "tensor-parallel": 4, "context-parallel": 4, "ulysses": 4, "pipeline-parallel": 5, "expert-parallel": 4, "fp8-training": 3,
    "separate-rollout": 4, "offload-activations": 2, "tiled-mlp": 2, "galore": 3, "qlora": 2, "lora": 2, "dora": 2,
}  # fmt: skip

# One of each group at most: they answer the same question.
GROUPS = (
    frozenset({"zero-1", "zero-2", "zero-3", "fsdp"}),
    frozenset({"gradient-checkpointing", "selective-checkpointing"}),
    frozenset({"fused-linear-loss", "chunked-loss"}),
    frozenset({"fused-kernels", "chunked-loss"}),
    frozenset({"precompute-reference", "adapter-reference", "offload-reference"}),
    frozenset({"lora", "dora", "qlora", "galore"}),
    frozenset({"eight-bit-optimizer", "factored-optimizer", "momentum-only-optimizer", "galore", "offload-optimizer"}),
    frozenset({"context-parallel", "ulysses"}),
    frozenset({"paged-optimizer", "offload-optimizer"}),
    frozenset({"paged-optimizer", "eight-bit-optimizer"}),  # one key names the optimizer: a plan that sets it twice cannot be followed
    frozenset({"smaller-micro-batch", "optimizer-in-backward"}),
)

# How much else is learned, for each application: an adaptive optimizer of another kind, a smaller rank or 4 bits under adapters least, a sequence cut
# in half most. The sum of a set decides before its time does.
ALTERS = {
    "factored-optimizer": 1, "momentum-only-optimizer": 1, "smaller-rank": 1, "cap-longest-batch": 1, "galore": 2, "lora": 2, "dora": 2, "qlora": 3,
    "cap-vision-tokens": 3, "shorter-sequence": 4, "smaller-model": 6,
}  # fmt: skip
# What opens the way for others: divided parameters can be offloaded, a packed base can be left narrow, a disk follows the host.
OPENERS = frozenset({"zero-3", "fsdp", "qlora", "gradient-checkpointing", "offload-optimizer", "tensor-parallel"})

REPEATABLE = {
    "smaller-micro-batch": 10,
    "rollout-fraction": 16,
    "shorter-sequence": 3,
    "tensor-parallel": 3,
    "context-parallel": 4,
    "smaller-rank": 2,
    "more-gpus": 4,
}


def altered(name: str, kind: str | None) -> int:
    """How much one application of a technique changes what is learned, on a run that trains ``kind``: 4 bits under adapters that are there cost little."""
    return 1 if name == "qlora" and kind in ("lora", "dora") else ALTERS.get(name, 1)


ORDER: dict[str, int] = {tier: index for index, tier in enumerate(TIERS)}


@lru_cache(maxsize=20_000)
def compatible(ids: frozenset[str]) -> bool:
    """Whether no two of the techniques answer the same question."""
    return all(len(group & ids) <= 1 for group in GROUPS)
