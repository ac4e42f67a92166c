"""Copies that arise while weights are loaded, divided, or held in two layouts."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.conditions import ACCELERATE, DIVIDED_PARAMETERS, SCRIPTED, framework_lacks, trains_adapters
from advisor.techniques.curing import cured, ineffective
from advisor.techniques.technique import NotApplicable, technique


def _load(run: Run, **changes: Any) -> Run:
    return run.but(load=changes)


@technique("load-sharded", tier="copies")
def load_sharded(run: Run) -> Run | NotApplicable:
    """Create the model on the meta device (ZeRO-3) or load it on rank 0 only (FSDP), so that no rank ever holds it whole on the card."""
    p, load = run.job.parallel, run.job.load
    freed = cured(run, "sharding-inactive-at-load", "quantized-load-not-sharded", also=ineffective("parallel.strategy"))
    if p.strategy not in DIVIDED_PARAMETERS or (p.shard or 1) == 1:
        return freed or NotApplicable(f"parameters are not divided over ranks (strategy {p.strategy or 'none'}), so each rank must load them all")
    if load is not None and load.materialise in ("meta", "rank-0") and freed is None:
        return NotApplicable(f"the model is already materialised by {load.materialise}")
    able = ACCELERATE | {"deepspeed", "openrlhf"} if p.strategy != "zero3" else SCRIPTED | {"llama-factory", "ms-swift"}
    if freed is None and (reason := framework_lacks(run, able, "how the model is materialised: it loads each rank's share itself")):
        return NotApplicable(reason)
    return _load(freed or run, materialise="meta" if p.strategy == "zero3" else "rank-0", move_before_sharding=False)


@technique("shard-before-move", tier="copies")
def shard_before_move(run: Run) -> Run | NotApplicable:
    """Divide the model first and move only the shard to the card: no early ``.to("cuda")``, no ``device_map`` under a sharding strategy."""
    freed = cured(run, "moved-before-sharding")
    load = run.job.load
    if load is not None and load.move_before_sharding:
        return _load(freed or run, move_before_sharding=False)
    return freed or NotApplicable("the model is not moved to the card before it is divided")


@technique("drop-duplicate-layout", tier="copies")
def drop_duplicate_layout(run: Run) -> Run | NotApplicable:
    """Keep one layout of the same values: free the source after packing, share buffers between layers."""
    return cured(run, "duplicate-layout") or NotApplicable("no second layout of the same values was found")


@technique("reduce-modules-to-save", tier="copies", exact=False, alters_learning=True)
def reduce_modules_to_save(run: Run) -> Run | NotApplicable:
    """Train only the new tokens' rows (``trainable_token_indices``) rather than a second copy of the embedding and head."""
    freed = cured(run, "saved-module-copy")
    if not trains_adapters(run):
        return freed or NotApplicable("modules_to_save belongs to adapter training")
    if not run.job.method.modules_to_save:
        return freed or NotApplicable("no module is trained and saved beside the adapters")
    if freed is None and run.job.framework.name == "llm-foundry":
        return NotApplicable("llm-foundry passes PEFT's settings on only in part; modules_to_save is not among them")
    return (freed or run).but(method={"modules_to_save": ()})


@technique("tie-embeddings", tier="copies")
def tie_embeddings(run: Run) -> Run | NotApplicable:
    """Keep embedding and head one tensor where the model has them tied (PEFT copies each for itself otherwise)."""
    architecture = run.architecture
    if architecture is not None and not architecture.tied:
        return NotApplicable("this model's head is a tensor of its own: tying it would make another model")
    saved = run.job.method.modules_to_save or ()
    if {"embed_tokens", "lm_head"} <= set(saved) and run.job.framework.name != "llm-foundry":
        return (cured(run, "saved-module-copy") or run).but(method={"modules_to_save": tuple(m for m in saved if m != "lm_head")})
    return cured(run, "saved-module-copy") or NotApplicable("embedding and head are not held twice")


@technique("wrap-frozen-apart", tier="copies")
def wrap_frozen_apart(run: Run) -> Run | NotApplicable:
    """Make adapters sharding units of their own, so that no flat gradient is kept for frozen weights."""
    p = run.job.parallel
    freed = cured(run, "frozen-gradients")
    if not trains_adapters(run) and run.job.method.kind != "freeze":
        return freed or NotApplicable("nothing is frozen, so no gradient is kept in vain")
    if p.strategy != "fsdp1":
        return freed or NotApplicable(f"only FSDP1 puts frozen and trained weights into one flat parameter (strategy {p.strategy or 'none'})")
    if p.wrap is not None and p.wrap.adapters == "apart" and freed is None:
        return NotApplicable("the adapters are units of their own already")
    if freed is None and (reason := framework_lacks(run, SCRIPTED, "the units of its sharding: it wraps adapters as it does")):
        return NotApplicable(reason)
    embeddings, blocks = (p.wrap.embeddings, p.wrap.blocks) if p.wrap is not None else (None, None)
    return (freed or run).but(parallel={"wrap": {"adapters": "apart", "embeddings": embeddings, "blocks": blocks}})


@technique("wrap-each-block", tier="copies")
def wrap_each_block(run: Run) -> Run | NotApplicable:
    """Make each layer a sharding unit of its own, so that one layer is gathered at a time and not the whole model."""
    p = run.job.parallel
    if p.strategy not in ("fsdp1", "fsdp2"):
        return NotApplicable(f"only FSDP has units that a policy decides (strategy {p.strategy or 'none'})")
    if p.wrap is None or p.wrap.blocks != "root":
        return NotApplicable("each layer is a unit already")
    return run.but(parallel={"wrap": {"adapters": p.wrap.adapters, "embeddings": p.wrap.embeddings, "blocks": "own unit"}})
