"""Small questions about a run and its failure that several rules ask."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import counters
from advisor.rules.estimating import ledger_of
from advisor.run import Run

DIVIDES_WEIGHTS = frozenset({"zero3", "fsdp1", "fsdp2", "megatron-fsdp"})
DIVIDES_GRADIENTS = DIVIDES_WEIGHTS | {"zero2"}
DIVIDES_OPTIMIZER = DIVIDES_GRADIENTS | {"zero1", "megatron-distributed"}
TRAINING = frozenset({"forward", "loss", "backward", "step"})
PREFERENCE = frozenset({"dpo", "kto", "orpo"})
ONLINE = frozenset({"grpo", "ppo", "rloo"})
ADAPTER = frozenset({"lora", "dora"})
QUANTISED = frozenset({"nf4", "fp4", "int8", "gptq-int4", "awq-int4", "fp8", "mxfp4"})


def phase(evidence: Evidence) -> str | None:
    """The phase of the failure, where frames or text settle it."""
    failure = evidence.failure
    return failure.phase if failure is not None else None


def in_phase(evidence: Evidence, *phases: str | None) -> bool:
    """Whether the failure happened in one of these phases (``None``: in one that is not settled)."""
    return phase(evidence) in phases


def sharded(run: Run) -> bool:
    """Whether the strategy divides the weights over ranks."""
    return run.job.parallel.strategy in DIVIDES_WEIGHTS


def gpus(run: Run) -> int:
    """How many GPUs the job uses: what the parallel sizes say, else cards a node times nodes."""
    hardware = run.job.hardware
    return max(run.world, (hardware.gpus_per_node or 1) * (hardware.nodes or 1))


def weight_bytes(run: Run, width: float | None = None) -> int | None:
    """All weights of the model at a width (bytes a parameter; that of ``precision.weights`` where none is given)."""
    shape = run.architecture
    if shape is None:
        return None
    if width is None:
        width = 4 if run.job.precision.weights == "fp32" else 2
    return round(shape.parameters * width)


def held_weights(run: Run) -> int | None:
    """The weights that one rank holds by the estimate, in their layout; ``None`` without an estimate."""
    ledger = ledger_of(run)
    if ledger is None:
        return None
    return sum(h.bytes for h in ledger.peak().holdings if h.part == "weights")


def nearly_full(evidence: Evidence) -> bool:
    """Whether the job itself holds at least nine tenths of the card."""
    figures = counters.of(evidence)
    return bool(figures.capacity and figures.reserved and figures.reserved >= 0.9 * figures.capacity)


def colocated(run: Run) -> bool:
    """Whether a generation engine shares the card."""
    rollout = run.job.rollout
    return rollout is not None and rollout.placement != "separate"


def checkpoints(run: Run) -> bool:
    """Whether activation checkpointing is configured."""
    return run.job.activations.checkpointing in ("full", "selective")


def near(value: float, target: float, relative: float = 0.05) -> bool:
    """Whether two sizes agree within a share of the second."""
    return target > 0 and abs(value - target) <= relative * target
