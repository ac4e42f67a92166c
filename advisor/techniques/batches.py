"""Fewer tokens in a forward pass. The effective batch stays, unless a technique says otherwise."""

from __future__ import annotations

from typing import Any

from advisor.program import of_run
from advisor.run import Run
from advisor.techniques.conditions import card_lacks, framework_lacks
from advisor.techniques.curing import cured
from advisor.techniques.technique import NotApplicable, technique

LEAST_TOKENS = 512  # a shorter sequence no longer is the same task
PACKING = frozenset(
    {
        "hf-trainer",
        "trl",
        "axolotl",
        "llama-factory",
        "ms-swift",
        "torchtune",
        "verl",
        "openrlhf",
        "unsloth",
        "accelerate",
        "nemo",
        "megatron-bridge",
        "custom",
    }
)


def _smaller(micro: int, total: int) -> int:
    """The largest micro batch below ``micro``, at most half of it, that divides ``total``."""
    return next(m for m in range(max(1, micro // 2), 0, -1) if total % m == 0)


def _log_probs(run: Run, times: int) -> Run | None:
    """The pass that only takes log-probabilities has a batch of its own: the larger one is the one to halve."""
    b, rollout = run.job.batch, run.job.rollout
    if rollout is None or rollout.logprob_micro_batch is None or rollout.logprob_micro_batch <= max(1, b.micro_batch or 1):
        return None
    return run.but(rollout={"logprob_micro_batch": max(1, rollout.logprob_micro_batch >> times)})


def _halved(run: Run, times: int) -> Run | NotApplicable:
    if (changed := _log_probs(run, times)) is not None:
        return changed
    b, p = run.job.batch, run.job.parallel
    if b.micro_batch is None:
        return NotApplicable("the micro batch is not known")
    if b.micro_batch == 1:
        return NotApplicable("the micro batch is one sequence already", settled=True)
    if run.job.optimizer.in_backward:
        return NotApplicable("accumulation does not go with a step inside the backward pass")
    in_flight = p.microbatches if (p.pipeline or 1) > 1 else None
    total = b.micro_batch * (in_flight or b.gradient_accumulation or 1)
    micro = b.micro_batch
    for _ in range(times):
        if micro == 1:
            return NotApplicable("the micro batch is one sequence by then")
        micro = _smaller(micro, total)
    if in_flight:
        return run.but(batch={"micro_batch": micro}, parallel={"microbatches": total // micro})
    return run.but(batch={"micro_batch": micro, "gradient_accumulation": total // micro})


NO_TEXT = "the model is fed images: there is no sequence of tokens to cut or to pack"


@technique("smaller-micro-batch", tier="batch", often=_halved)
def smaller_micro_batch(run: Run) -> Run | NotApplicable:
    """Half as many sequences a forward pass, twice as many passes a step."""
    return _halved(run, 1)


@technique("shorter-sequence", tier="batch", exact=False, alters_learning=True)
def shorter_sequence(run: Run) -> Run | NotApplicable:
    """Half the sequence length: long samples are cut."""
    if of_run(run).images:
        return NotApplicable(NO_TEXT, settled=True)
    b = run.job.batch
    if b.seq_len is None:
        return NotApplicable("the sequence length is not known")
    if b.seq_len // 2 < LEAST_TOKENS:
        return NotApplicable(f"below {LEAST_TOKENS} tokens a sequence the task would change")
    changes: dict[str, Any] = {"seq_len": b.seq_len // 2}
    if b.token_budget is not None and b.token_budget > changes["seq_len"]:
        changes["token_budget"] = max(changes["seq_len"], b.token_budget // 2)
    if b.lengths is not None:
        cut = {name: min(value, changes["seq_len"]) for name in ("p50", "p95", "p99", "max") if (value := getattr(b.lengths, name)) is not None}
        changes["lengths"] = cut or None
    return run.but(batch=changes)


@technique("sequence-packing", tier="batch", exact=False)
def sequence_packing(run: Run) -> Run | NotApplicable:
    """Put samples one behind the other without padding; attention knows where each begins."""
    if of_run(run).images:
        return NotApplicable(NO_TEXT, settled=True)
    b, a = run.job.batch, run.job.activations
    if b.packed and a.sequence_packing != "padded":
        return NotApplicable("every sequence is full already")
    if b.packed:
        return NotApplicable("the sequences are packed")
    if a.sequence_packing == "padding-free":
        return NotApplicable("the batches are free of padding already")
    if reason := framework_lacks(run, PACKING, "packing"):
        return NotApplicable(reason)
    if run.job.objective in ("dpo", "kto", "orpo", "reward"):
        return NotApplicable("preference pairs are compared sample by sample; padding-free batches are what their trainers offer, where they do")
    if lacking := card_lacks(run, "flash_2"):
        return NotApplicable(f"packed samples need attention that knows their borders: {lacking}")
    if run.architecture is not None and not any(block.kind == "attention" for block in run.architecture.blocks):
        return NotApplicable("a state-space mixer would carry its state from one sample into the next")
    freed = cured(run, "padding") or run
    return freed.but(
        batch={"packed": True},
        activations={"sequence_packing": "padding-free", "attention": _knows_borders(run)},
    )


def _knows_borders(run: Run) -> str | None:
    """The attention that keeps packed samples apart: torchtune changes to FlexAttention for packed batches by itself."""
    now = run.job.activations.attention
    if run.job.framework.name == "torchtune":
        return "flex"
    if run.job.framework.name == "unsloth":
        return now  # chosen by Unsloth
    return "flash-2" if now in (None, "eager", "sdpa") else now


@technique("cap-vision-tokens", tier="batch", exact=False, alters_learning=True)
def cap_vision_tokens(run: Run) -> Run | NotApplicable:
    """Fewer image tokens: smaller pictures, fewer frames."""
    freed = cured(run, "vision-tokens")
    vision = run.job.model.vision
    if vision is None:
        return freed or NotApplicable("the job has no images")
    changes: dict[str, Any] = {}
    for name in ("tokens", "max_pixels", "frames"):
        value = getattr(vision, name)
        if value is not None and value > 1:
            changes[name] = value // 2
            break
    if not changes:
        return freed or NotApplicable("neither image tokens nor pixels nor frames are known")
    everything = {**vision.written(), **changes}
    batch = {}
    if "tokens" in changes and vision.tokens and run.job.batch.seq_len and run.job.batch.seq_len > vision.tokens:
        batch = {"batch": {"seq_len": run.job.batch.seq_len - changes["tokens"]}}  # image tokens are part of the sequence
    return (freed or run).but(model={"vision": everything}, **batch)


# Frameworks whose evaluation has a batch of its own that can be set; the others evaluate with the training micro batch, or in an engine.
EVAL_BATCH = frozenset(
    {"hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "accelerate", "ms-swift", "llm-foundry", "torchtune", "deepspeed", "custom"}
)


@technique("smaller-eval-batch", tier="batch")
def smaller_eval_batch(run: Run) -> Run | NotApplicable:
    """Evaluate with the training micro batch (or fewer)."""
    freed = cured(run, "eval-batch")
    evaluation, micro = run.job.eval, run.job.batch.micro_batch
    if evaluation is None or evaluation.micro_batch is None:
        return freed or NotApplicable("the job has no evaluation, or its batch is not known")
    if evaluation.micro_batch == 1:
        return freed or NotApplicable("one sequence is evaluated at a time already")
    if freed is None and (reason := framework_lacks(run, EVAL_BATCH, "the batch of its evaluation")):
        return NotApplicable(reason)
    target = micro if micro is not None and micro < evaluation.micro_batch else max(1, evaluation.micro_batch // 2)
    return (freed or run).but(eval={"micro_batch": target})


@technique("cap-longest-batch", tier="batch", exact=False, alters_learning=True)
def cap_longest_batch(run: Run) -> Run | NotApplicable:
    """Cut or drop the few samples far longer than the rest, or bound the tokens of a batch."""
    if of_run(run).images:
        return NotApplicable(NO_TEXT, settled=True)
    freed = cured(run, "batch-outlier")
    b = run.job.batch
    lengths = b.lengths
    ceiling = (lengths.p99 or lengths.p95) if lengths is not None else None
    if ceiling is not None and b.seq_len is not None and ceiling < b.seq_len and not b.packed:
        known = {n: v for n in ("p50", "p95", "p99", "max") if lengths is not None and (v := getattr(lengths, n)) is not None}
        return (freed or run).but(batch={"seq_len": ceiling, "lengths": {**known, "max": ceiling}})
    if b.token_budget is not None and b.seq_len is not None and b.token_budget > b.seq_len:
        return (freed or run).but(batch={"token_budget": max(b.seq_len, b.token_budget // 2)})
    return freed or NotApplicable("no batch far above the others is known")


@technique("balance-experts", tier="batch", exact=False, estimated=False)
def balance_experts(run: Run) -> Run | NotApplicable:
    """A balancing loss or bias, or a capacity limit, so that no rank receives most tokens."""
    if run.architecture is not None and not run.architecture.expert_parameters:
        return NotApplicable("the model has no experts")
    return cured(run, "expert-imbalance") or run
