"""Smaller optimizer state."""

from __future__ import annotations

from advisor.run import Run
from advisor.techniques.conditions import FSDP, OPTIMIZERS, ZERO, first, framework_lacks, not_nvidia, trains_adapters
from advisor.techniques.curing import cured
from advisor.techniques.technique import NotApplicable, technique

ADAM = frozenset({"adamw", "paged-adamw", "cpu-adam", "adam-mini"})
MEGATRON_STRATEGIES = frozenset({"megatron", "megatron-distributed", "megatron-fsdp"})


def _engine_steps(run: Run) -> str | None:
    strategy = run.job.parallel.strategy or "none"
    if run.job.offload.optimizer in ("cpu", "nvme"):
        return "the step runs on the host, where this optimizer does not"
    if reason := framework_lacks(run, OPTIMIZERS - {"llm-foundry"}, "another optimizer than its own"):
        return reason
    if strategy in MEGATRON_STRATEGIES:
        return "Megatron brings its own optimizer"
    return None


def _own_states(run: Run) -> str | None:
    kind = run.job.method.kind
    if kind in ("galore", "lomo", "badam", "lisa"):
        return f"{kind} brings an optimizer of its own"
    return None


@technique("eight-bit-optimizer", tier="shard", exact=False)
def eight_bit_optimizer(run: Run) -> Run | NotApplicable:
    """AdamW with both moments in 8 bits, block by block (bitsandbytes)."""
    name = run.job.optimizer.name
    target = {"adamw": "adamw-8bit", "paged-adamw": "paged-adamw-8bit", "adam-mini": "adamw-8bit"}.get(name or "")
    if target is None:
        return NotApplicable(f"the optimizer {name or 'is not known and'} has no 8-bit form to change to")
    reason = first(not_nvidia(run, "bitsandbytes' 8-bit optimizer"), _engine_steps(run), _own_states(run))
    if reason is None and run.job.precision.mixed == "deepspeed" and run.job.precision.master == "fp32" and run.job.parallel.strategy == "zero3":
        reason = "DeepSpeed ZeRO-3 flattens parameters into one vector; block-wise 8-bit states over it were not tested by either library"
    if reason:
        return NotApplicable(reason)
    return run.but(optimizer={"name": target, "states": "int8"})


@technique("paged-optimizer", tier="shard")
def paged_optimizer(run: Run) -> Run | NotApplicable:
    """States in managed memory: the driver moves pages to the host when the card runs full."""
    name = run.job.optimizer.name
    target = {"adamw": "paged-adamw", "adamw-8bit": "paged-adamw-8bit"}.get(name or "")
    if target is None:
        return NotApplicable(f"the optimizer {name or 'is not known and'} has no paged form")
    reason = first(not_nvidia(run, "bitsandbytes' paged optimizer"), _engine_steps(run), _own_states(run))
    if reason is None and run.job.parallel.strategy in ZERO:
        reason = "DeepSpeed moves optimizer state itself: offload-optimizer"
    if reason:
        return NotApplicable(reason)
    return run.but(optimizer={"name": target, "states": "int8" if target.endswith("8bit") else "fp32"})  # bitsandbytes, whatever the weights are


@technique("factored-optimizer", tier="shard", exact=False, alters_learning=True)
def factored_optimizer(run: Run) -> Run | NotApplicable:
    """Adafactor without momentum: a row and a column of statistics in place of a matrix."""
    if run.job.optimizer.name == "adafactor":
        return NotApplicable("the optimizer is Adafactor already")
    if run.job.optimizer.name == "sgd":
        return NotApplicable("plain SGD has no state")
    reason = first(_engine_steps(run), _own_states(run))
    if reason is None and run.job.parallel.strategy in ZERO | FSDP and (run.job.parallel.shard or 1) > 1:
        reason = "Adafactor needs whole matrices, and flat or divided parameters have no rows and columns"
    return NotApplicable(reason) if reason else run.but(optimizer={"name": "adafactor", "states": "fp32"})


@technique("momentum-only-optimizer", tier="shard", exact=False, alters_learning=True)
def momentum_only_optimizer(run: Run) -> Run | NotApplicable:
    """Lion: one moment in place of two."""
    if run.job.optimizer.name not in ADAM:
        return NotApplicable(f"the optimizer {run.job.optimizer.name or 'is not known and'} does not keep two full moments")
    reason = first(_engine_steps(run), _own_states(run))
    return NotApplicable(reason) if reason else run.but(optimizer={"name": "lion", "states": "fp32"})  # bitsandbytes and the others keep it wide


@technique("optimizer-in-backward", tier="shard")
def optimizer_in_backward(run: Run) -> Run | NotApplicable:
    """Step each parameter as soon as its gradient exists and drop the gradient at once."""
    job = run.job
    if job.optimizer.in_backward:
        return NotApplicable("the step runs inside the backward pass already")
    if (job.batch.gradient_accumulation or 1) > 1:
        return NotApplicable("accumulation needs the gradients that this drops: use it with accumulation 1")
    strategy = job.parallel.strategy or "none"
    if strategy in ZERO | {"fsdp1"} or strategy in MEGATRON_STRATEGIES:
        return NotApplicable(f"under {strategy} the engine steps after the whole backward pass")
    if strategy == "ddp" and (job.parallel.replicate or job.parallel.shard or 1) > 1:
        return NotApplicable("DDP reduces gradients in buckets that outlive the hook of one parameter")
    if job.framework.name not in (None, "torchtune", "custom"):
        return NotApplicable(f"{job.framework.name} has no setting for it (and clips by the norm of all gradients, which are never there together)")
    if _engine_steps(run):
        return NotApplicable("the step runs on the host")
    return run.but(optimizer={"in_backward": True})


@technique("galore", tier="shard", exact=False, alters_learning=True)
def galore(run: Run) -> Run | NotApplicable:
    """Adam's moments in a low-rank projection of each gradient matrix, refreshed by a decomposition every few hundred steps."""
    job = run.job
    if job.method.kind not in ("full", None):
        return NotApplicable(f"GaLore replaces full training, and the job trains {job.method.kind}")
    if job.framework.name not in (None, "hf-trainer", "trl", "axolotl", "llama-factory", "custom"):
        return NotApplicable(f"{job.framework.name} does not bring GaLore")
    strategy = job.parallel.strategy or "none"
    if strategy in ZERO | FSDP or strategy in MEGATRON_STRATEGIES:
        return NotApplicable(f"GaLore projects whole gradient matrices, which {strategy} divides")
    if job.optimizer.name not in ("adamw", "adamw-8bit", None):
        return NotApplicable(f"GaLore is AdamW in a projection; the job uses {job.optimizer.name}")
    if _engine_steps(run):
        return NotApplicable("the step runs on the host")
    architecture = run.architecture
    rank = 128 if architecture is None else max(1, min(1024, architecture.hidden // 4))  # the authors' 7B run: 1024 of 4096 (README.md)
    return run.but(method={"kind": "galore", "rank": rank}, optimizer={"name": "galore-adamw"})


@technique("exclude-vocabulary-layers", tier="shard", exact=False)
def exclude_vocabulary_layers(run: Run) -> Run | NotApplicable:
    """Leave embedding and head out of the adapter, projection or quantisation: their long side is the vocabulary."""
    job = run.job
    freed = cured(run, "projection-temporary")
    named = job.method.targets if isinstance(job.method.targets, tuple) else ()
    vocabulary = {"lm_head", "embed_tokens", "wte", "embed_out", "word_embeddings"}
    kept = tuple(m for m in named if m not in vocabulary)
    if kept != named and kept:
        return (freed or run).but(method={"targets": kept})
    return freed or NotApplicable("no vocabulary-sized matrix is projected" if not trains_adapters(run) else "no adapter sits on the embedding or head")
