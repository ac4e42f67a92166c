"""Copies of whole models beside the one that is trained."""

from __future__ import annotations

from advisor.run import Run
from advisor.techniques.conditions import framework_lacks, trains_adapters
from advisor.techniques.curing import cured, extra
from advisor.techniques.technique import NotApplicable, technique

PREFERENCE = frozenset({"dpo", "kto"})  # the reference sees a fixed data set, so its log-probabilities can be computed once
WITH_REFERENCE = frozenset({"dpo", "kto", "grpo", "ppo", "rloo"})
OFFLOADERS = frozenset({"verl", "openrlhf", "colossalchat", "custom"})  # ref.fsdp_config.param_offload, ref_reward_offload
PRECOMPUTES = frozenset({"trl", "axolotl", "unsloth", "hf-trainer", "accelerate", "custom"})  # trl: precompute_ref_log_probs
FREED = ("reference-copy",)


def _reference_resident(run: Run) -> bool:
    return run.job.reference == "copy" or any(extra("reference")(d) or d.cause in FREED for d in run.deviations)


@technique("precompute-reference", tier="copies")
def precompute_reference(run: Run) -> Run | NotApplicable:
    """Compute the reference's log-probabilities once before training and let the reference go."""
    if run.job.objective not in PREFERENCE:
        return NotApplicable(
            f"the objective {run.job.objective or 'is not known and'} has no fixed data set whose reference log-probabilities could be computed ahead"
        )
    if not _reference_resident(run):
        return NotApplicable("no reference model is resident beside the policy")
    if reason := framework_lacks(run, PRECOMPUTES, "reference log-probabilities that are computed ahead"):
        return NotApplicable(reason)
    freed = cured(run, *FREED, also=extra("reference")) or run
    return freed.but(reference="precomputed")


@technique("adapter-reference", tier="copies")
def adapter_reference(run: Run) -> Run | NotApplicable:
    """Use the base with its adapters switched off as the reference."""
    if not trains_adapters(run):
        return NotApplicable("all weights are trained, so the base does not stay what the reference was")
    if not _reference_resident(run):
        return NotApplicable("no reference model is resident beside the policy")
    freed = cured(run, *FREED, also=extra("reference")) or run
    return freed.but(reference="adapter-off")


@technique("offload-reference", tier="copies")
def offload_reference(run: Run) -> Run | NotApplicable:
    """Hold the frozen reference in host memory and bring it layer by layer (or swapped in whole) for its pass."""
    if run.job.objective is not None and run.job.objective not in WITH_REFERENCE:
        return NotApplicable(f"the objective {run.job.objective} has no reference model")
    if not _reference_resident(run):
        return NotApplicable("no reference model is resident beside the policy")
    if reason := framework_lacks(run, OFFLOADERS, "a reference in host memory"):
        return NotApplicable(reason)
    freed = cured(run, *FREED, also=extra("reference")) or run
    return freed.but(reference="offloaded")
