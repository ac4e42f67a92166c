"""The rollout engine beside the trainer: whose weights, when, and how much of the card."""

from __future__ import annotations

from advisor.job import Rollout
from advisor.run import Run
from advisor.techniques.conditions import allocator_with, framework_lacks, older
from advisor.techniques.curing import cured, extra, ineffective
from advisor.techniques.technique import NotApplicable, technique

LEVEL = {"trl": "level-2", "verl": "level-2"}  # trl generation/vllm_generation.py sleeps at 2; verl third_party/vllm at 2 from vLLM 0.8.5
STAGES = frozenset({"verl", "custom"})
SEPARATES = frozenset({"trl", "axolotl", "openrlhf", "ms-swift", "nemo", "custom", "hf-trainer"})
FRACTION_STEP = 0.05
LEAST_FRACTION = 0.1  # below this vLLM rarely has room for one sequence beside its weights; the estimate shows what remains for the cache


def _engine(run: Run) -> Rollout | NotApplicable:
    rollout = run.job.rollout
    if rollout is None:
        return NotApplicable("the job generates no text while it trains")
    if rollout.placement == "separate":
        return NotApplicable("the engine has cards of its own")
    if rollout.engine == "hf":
        return NotApplicable("generation runs in the trainer's own model: there is no second engine")
    return rollout


@technique("share-rollout-weights", tier="copies")
def share_rollout_weights(run: Run) -> Run | NotApplicable:
    """The engine reads the trainer's own base tensors (Unsloth re-wraps vLLM's), so the base is held once."""
    rollout = _engine(run)
    if isinstance(rollout, NotApplicable):
        return rollout
    if run.job.framework.name not in (None, "unsloth", "custom"):
        return NotApplicable(f"{run.job.framework.name} gives the engine weights of its own; Unsloth lets both read one copy")
    if rollout.shares_weights:
        return NotApplicable("the engine reads the trainer's weights already")
    return (cured(run, also=extra("rollout-weights")) or run).but(rollout={"shares_weights": True})


@technique("rollout-sleep", tier="copies")
def rollout_sleep(run: Run) -> Run | NotApplicable:
    """Put the engine to sleep while the trainer works: its cache (and, by level, its weights) leave the card."""
    rollout = _engine(run)
    if isinstance(rollout, NotApplicable):
        return rollout
    freed = cured(run, "rollout-resident", also=ineffective("rollout.sleep"))
    if rollout.sleep in ("level-1", "level-2"):
        return freed or NotApplicable(f"the engine sleeps already ({rollout.sleep})")
    if freed is None and run.job.framework.name == "trl" and (reason := older(run, "trl", (0, 23))):
        return NotApplicable(f"vllm_enable_sleep_mode: {reason}")  # trl grpo_config.py: not in 0.22.2
    base = freed or run
    if (run.job.framework.allocator or {}).get("expandable_segments") is True:
        base = base.but(framework={"allocator": allocator_with(run, expandable_segments=False)})  # cumem and expandable segments exclude each other
    return base.but(rollout={"sleep": LEVEL.get(run.job.framework.name or "", "level-1")})


@technique("rollout-fraction", tier="copies")
def rollout_fraction(run: Run) -> Run | NotApplicable:
    """A smaller share of the card for the engine: fewer sequences at once, no change to what they say."""
    rollout = _engine(run)
    if isinstance(rollout, NotApplicable):
        return rollout
    freed = cured(run, "rollout-budget")
    if rollout.memory_fraction is None:
        return freed or NotApplicable("the engine's share of the card is not known")
    fraction = round(rollout.memory_fraction - FRACTION_STEP, 2)
    if fraction < LEAST_FRACTION:
        return freed or NotApplicable(f"the engine has {rollout.memory_fraction:g} of the card; below {LEAST_FRACTION:g} it rarely starts")
    return (freed or run).but(rollout={"memory_fraction": fraction})


@technique("staged-wake-up", tier="copies")
def staged_wake_up(run: Run) -> Run | NotApplicable:
    """Wake the engine's weights first, hand over the new ones, then make its cache."""
    rollout = _engine(run)
    if isinstance(rollout, NotApplicable):
        return rollout
    freed = cured(run, "weight-sync-overlap")
    if freed is None and (reason := framework_lacks(run, STAGES, "how the engine wakes: its version decides")):
        return NotApplicable(reason)
    if rollout.wake == "at-once" or rollout.sync == "everything":
        return (freed or run).but(rollout={"wake": "staged", "sync": "tensor" if rollout.sync == "everything" else rollout.sync})
    return freed or NotApplicable("the engine wakes in stages already")


@technique("separate-rollout", tier="copies")
def separate_rollout(run: Run) -> Run | NotApplicable:
    """Give the engine cards of its own. It needs further cards, so it comes last of its tier."""
    rollout = _engine(run)
    if isinstance(rollout, NotApplicable):
        return rollout
    if reason := framework_lacks(run, SEPARATES, "an engine on cards of its own"):
        return NotApplicable(reason)
    freed = cured(run, "rollout-resident", "rollout-budget", "weight-sync-overlap") or run
    return freed.but(rollout={"placement": "separate"})
