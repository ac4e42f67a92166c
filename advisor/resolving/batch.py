"""How many tokens a forward pass sees."""

from __future__ import annotations

from advisor.architecture import ConfigError, of_model
from advisor.resolving import family
from advisor.resolving.draft import Draft


def settle(draft: Draft) -> None:
    """``batch.*``. What no framework settles stays open and is asked for."""
    if not draft.known("batch.token_budget"):
        draft.table("batch.micro_batch", alternatives=(1, 2, 4, 8))
    draft.table("batch.seq_len", alternatives=(512, 1024, 2048, 4096))
    if draft.known("batch.token_budget"):
        draft.assume("batch.seq_len", draft.get("batch.token_budget"), "a sequence is at most what a pass is filled to", alternatives=(2048, 4096))
    elif not draft.known("batch.seq_len") and (positions := _of_transcript(draft)):
        draft.assume("batch.seq_len", positions, "a transcript is at most as long as the decoder has positions", alternatives=(64, 225))
    _passes(draft)
    draft.table("batch.gradient_accumulation", "batch.packed")
    draft.default("batch.gradient_accumulation", 1, draft.framework or "every framework")
    if draft.get("activations.sequence_packing") == "padding-free" and draft.get("objective") not in family.RL:
        draft.assume("batch.packed", True, "rows without padding are full", alternatives=(False,))
    if draft.get("objective") == "pretrain":
        draft.assume("batch.packed", True, "texts for pretraining fill the sequence", alternatives=(False,))
    draft.default("batch.packed", False, draft.framework or "every framework", "packing is off unless asked for", alternatives=(True,))
    if draft.get("objective") in ("grpo", "rloo"):
        draft.table("batch.generations")
        draft.default("batch.generations", 8, "trl GRPOConfig num_generations")


def _of_transcript(draft: Draft) -> int | None:
    """Positions of the decoder of a model that hears: its text is short, and no training script names a length for it."""
    try:
        architecture = of_model(draft.model)
    except ConfigError:
        return None
    return architecture.max_positions if architecture is not None and architecture.sources else None


def _passes(draft: Draft) -> None:
    """Forward passes of one step on a rank: in flight through a pipeline, one after another without one."""
    whole, micro, stages = draft.get("batch.global_batch"), draft.get("batch.micro_batch"), draft.get("parallel.pipeline")
    if whole is not None and micro is not None:
        # ranks that share a sequence (context parallel) see the same samples
        ranks = max(1, draft.get("parallel.shard") * draft.get("parallel.replicate") // draft.get("parallel.context"))
        passes, why = max(1, whole // (micro * ranks)), f"{whole} sequences a step / (micro batch {micro} x {ranks} data-parallel ranks)"
        draft.infer("parallel.microbatches" if stages > 1 else "batch.gradient_accumulation", passes, why)
    if stages > 1:
        draft.assume("parallel.microbatches", 2 * stages, "at least as many as stages are in flight", alternatives=(stages,))
