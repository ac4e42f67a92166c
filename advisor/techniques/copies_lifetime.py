"""Bytes that live longer, or in more places, than anything reads them."""

from __future__ import annotations

from advisor.run import Run
from advisor.techniques.conditions import DIVIDED_PARAMETERS, SCRIPTED, SHARDED_SAVE, SYNCS, framework_lacks, trains_adapters
from advisor.techniques.curing import cured, extra, ineffective, widened
from advisor.techniques.technique import Flags, NotApplicable, technique


@technique("sync-each-microbatch", tier="copies")
def sync_each_microbatch(run: Run) -> Run | NotApplicable:
    """Reduce gradients in every micro-batch, so that accumulation happens on the shard and not on whole gradients."""
    p = run.job.parallel
    freed = cured(run, "gradients-unsharded", also=ineffective("parallel.sync_each_microbatch"))
    if (run.job.batch.gradient_accumulation or 1) == 1:
        return freed or NotApplicable("without accumulation every micro-batch is reduced already")
    if p.strategy not in DIVIDED_PARAMETERS | {"zero2"} or (p.shard or 1) == 1:
        return freed or NotApplicable(f"gradients are not divided (strategy {p.strategy or 'none'}), so reducing more often would free nothing")
    if p.strategy in ("zero2", "zero3"):
        return freed or NotApplicable(f"DeepSpeed reduces gradients in every micro-batch under {p.strategy} already")
    if p.sync_each_microbatch is None and (reason := framework_lacks(run, SYNCS, "accumulating without synchronisation, or for the contrary")):
        return freed or NotApplicable(reason)
    if p.sync_each_microbatch and freed is None:
        return NotApplicable("gradients are reduced in every micro-batch already")
    return (freed or run).but(parallel={"sync_each_microbatch": True})


NARROW_BUFFER = frozenset(
    {"megatron-lm", "megatron-bridge", "deepspeed", "hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "openrlhf", "ms-swift", "custom"}
)


def _view_only(before: Run, after: Run) -> Flags:
    return Flags(exact=before.job.precision == after.job.precision, alters_learning=False)


@technique("narrow-gradient-buffer", tier="copies", exact=False, flags=_view_only)
def narrow_gradient_buffer(run: Run) -> Run | NotApplicable:
    """Let gradients be views of DDP's buckets, or keep the accumulation buffer in the weights' dtype."""
    job = run.job
    freed = cured(run, "gradient-buffer-wide", also=widened("precision.gradients"))
    if job.parallel.strategy == "ddp" and not job.parallel.gradient_as_bucket_view and not framework_lacks(run, SCRIPTED, "bucket views"):
        return (freed or run).but(parallel={"gradient_as_bucket_view": True})
    if freed is not None:
        return freed
    if job.precision.gradients == "fp32" and job.precision.weights in ("bf16", "fp16") and not trains_adapters(run):
        if reason := framework_lacks(run, NARROW_BUFFER, "the dtype of its gradient buffer"):
            return NotApplicable(reason)
        return run.but(precision={"gradients": job.precision.weights, "reduce": job.precision.weights})
    return NotApplicable("gradients are held once, in the dtype of the weights")


@technique("detach-retained", tier="copies")
def detach_retained(run: Run) -> Run | NotApplicable:
    """Keep numbers, not graphs: ``.item()`` or ``.detach()`` for losses, delete outputs, exceptions and earlier trainers."""
    freed = cured(run, "retained-graph", "retained-objects", also=lambda d: d.kind == "retained")
    if run.job.framework.keeps_outputs:
        return (freed or run).but(framework={"keeps_outputs": False})
    return freed or NotApplicable("nothing of an earlier step was found alive")


@technique("disable-decode-cache", tier="copies")
def disable_decode_cache(run: Run) -> Run | NotApplicable:
    """``use_cache=False`` while training: the KV cache of a training pass is never read."""
    freed = cured(run, "decode-cache-in-training", also=extra("decode-cache"))
    if run.job.framework.use_cache and not framework_lacks(run, SCRIPTED, "a decoding cache while it trains"):
        return (freed or run).but(framework={"use_cache": False})
    return freed or NotApplicable("the decoding cache is off already")


GATHERS = frozenset({"hf-trainer", "trl", "unsloth", "llama-factory", "ms-swift", "accelerate", "custom", "deepspeed"})


@technique("eval-on-host", tier="copies")
def eval_on_host(run: Run) -> Run | NotApplicable:
    """Move predictions to the host every few batches, or keep the loss (or the argmax) only."""
    freed = cured(run, "eval-accumulation")
    evaluation = run.job.eval
    if evaluation is None:
        return freed or NotApplicable("the job has no evaluation")
    if freed is None and (reason := framework_lacks(run, GATHERS, "gathering predictions: its evaluation keeps the loss only")):
        return NotApplicable(reason)
    if evaluation.accumulate in ("host", "nothing") and freed is None:
        return NotApplicable("predictions do not gather on the card")
    return (freed or run).but(eval={"accumulate": "host"})


@technique("sharded-save", tier="copies")
def sharded_save(run: Run) -> Run | NotApplicable:
    """Each rank writes its own shard; the full file is put together on a host afterwards."""
    freed = cured(run, "save-gather")
    save = run.job.save
    if trains_adapters(run):
        if (save is None or save.format in (None, "adapters")) and freed is None:
            return NotApplicable("only adapters are saved")
        return (freed or run).but(save={"format": "adapters", "gather": "none", "to_host": True})
    divided = run.job.parallel.strategy in DIVIDED_PARAMETERS and (run.job.parallel.shard or 1) > 1
    if save is not None and save.format == "sharded" and freed is None:
        return NotApplicable("the checkpoint is written in shards already")
    if not divided and freed is None:
        return NotApplicable("every rank holds the whole model, so saving gathers nothing")
    if freed is None and (reason := framework_lacks(run, SHARDED_SAVE, "how it saves: it writes shards, or gathers, as it does")):
        return NotApplicable(reason)
    return (freed or run).but(save={"format": "sharded", "gather": "none", "to_host": True}) if divided else freed or run


@technique("resume-on-host", tier="copies")
def resume_on_host(run: Run) -> Run | NotApplicable:
    """Read the checkpoint into host memory (``map_location="cpu"``) and copy tensor by tensor."""
    freed = cured(run, "resume-on-device")
    resume = run.job.resume
    if resume is not None and resume.map != "host":
        return (freed or run).but(resume={"map": "host"})
    return freed or NotApplicable("no checkpoint is read onto the card")


@technique("merge-on-host", tier="copies")
def merge_on_host(run: Run) -> Run | NotApplicable:
    """Merge adapters into a 16-bit base in host memory, after training, rather than widening the base on the card."""
    freed = cured(run, "merge-dequantizes")
    if run.job.save is not None and run.job.save.merge == "device":
        return (freed or run).but(save={"merge": "host"})
    return freed or NotApplicable("adapters are not merged on the card")
