"""Bucket, prefetch or all-gather buffers are the peak, or the communicator starves because the allocator's cache holds the rest."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.rules import counters, fingerprint, observed, snapshots
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import in_phase
from advisor.run import Run
from advisor.units import MIB, show

LEAST_MODEL = 64 * MIB  # below it a rise is an allocator's segment
WAITED = ("time-out", "peer gone", "SIGTERM")  # a rank that waited for another one: nothing of memory
ENDED = ("torchrun", "exit code", "signal", "kernel died")  # a launcher's or a notebook's word that a process ended: its own error is printed elsewhere


_GATHERS = (
    r"_alloc_padded_unsharded_flat_param|foreach_all_gather|all_gather_into_tensor|FlatParamHandle|_unshard\b|unshard\(|"
    r"fetch_sub_module|all_gather_coalesced|_allgather_params\w*|partition_parameters\.py:_all_?gather\w*"
)


def _bucket(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "bucket")


def _unit(run: Run, evidence: Evidence) -> str | None:
    return (
        fingerprint.match(run, evidence, "unit", alone=True)
        if run.job.parallel.strategy in ("fsdp1", "fsdp2", "zero3") and not in_phase(evidence, "save", "load")
        else None
    )


def _collective(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    if failure is None or failure.kind != "collective" or dict(failure.details).get("what") in (*WAITED, *ENDED):
        return None
    return "the communicator's own allocation failed"


def _cached(_run: Run, evidence: Evidence) -> str | None:
    """The allocator holds far more than is allocated, so nothing is left for what does not go through it."""
    failure = evidence.failure
    if failure is None or failure.kind not in ("collective", "gpu-driver"):
        return None
    for sample in reversed(evidence.samples):
        reserved, held = sample.reserved_bytes or sample.peak_reserved_bytes, sample.allocated_bytes
        if reserved and held and reserved - held > 0.15 * reserved:
            return f"{show(reserved)} are reserved where {show(held)} are allocated: the rest is cache that NCCL cannot use"
    figures = counters.of(evidence)
    return f"{show(figures.stranded)} are cached" if figures.stranded and figures.capacity and figures.stranded > 0.1 * figures.capacity else None


_WRAPPED = re.compile(r"\b(?:ddp|wrap\w*|DistributedDataParallel)\b", re.IGNORECASE)
AS_LARGE = 0.2  # of the model: buckets round up, and a reserved figure comes in segments


def _wrapping(_run: Run, evidence: Evidence) -> str | None:
    """What is held rises by about the model's own size as it is wrapped for data parallelism: buckets for all its gradients."""
    figures = [(s.reserved_bytes or s.allocated_bytes or 0, s) for s in evidence.samples]
    for (first, _), (before, _), (after, sample) in zip(figures, figures[1:], figures[2:], strict=False):
        model, rise = before - first, after - before
        if _WRAPPED.search(sample.label) and model > LEAST_MODEL and abs(rise - model) <= AS_LARGE * model:
            return f"{show(rise)} more are held after the model of {show(model)} is wrapped ({sample.where}: {sample.label[:60]})"
    return None


_KEEPS = re.compile(r"(?:^|[._-])(?:fsdp_)?reshard_after_forward$", re.IGNORECASE)


def _stays(_run: Run, evidence: Evidence) -> str | None:
    """What is gathered in the forward pass is kept until the backward pass, by the settings."""
    if in_phase(evidence, "save", "load", "sync", "resume", "step"):
        return None
    for where, key, value in evidence.seen_keys:
        if _KEEPS.search(key) and str(value).strip("'\"").lower() in ("false", "never"):
            return f"what is gathered stays for the whole forward pass ({where}: {key}={value}), and the next unit finds no room beside it"
        if str(value).strip("'\"").upper().rpartition(".")[2] == "SHARD_GRAD_OP":
            return f"what is gathered stays for the whole forward pass ({where}: {key}={value}), and the next unit finds no room beside it"
    return None


def _form(run: Run, evidence: Evidence) -> Form | None:
    """One unit is cured by its policy. NCCL asks the driver itself: what it lacks is memory that PyTorch's allocator does not hold."""
    if _one_unit(run) or _whole(run, evidence) is not None:
        return Form("The whole model is gathered at once: FSDP wraps no module but the model itself", ("wrap-each-block",))
    if _collective(run, evidence) is None or _bucket(run, evidence) is not None:
        return None
    return Form(
        "The communicator finds no memory: PyTorch's allocator holds the card", ("empty-cache", "leave-headroom", "smaller-buckets", "limit-all-gathers")
    )


def _one_unit(run: Run) -> bool:
    wrap = run.job.parallel.wrap
    return run.job.parallel.strategy in ("fsdp1", "fsdp2") and wrap is not None and wrap.blocks == "root"


def _whole(run: Run, evidence: Evidence) -> str | None:
    if in_phase(evidence, "save", "load", "sync", "resume") or run.job.parallel.strategy not in ("fsdp1", "fsdp2", "zero3"):
        return None
    return fingerprint.match(run, evidence, "flat-whole")


RULE = Rule(
    id="communication-buffers",
    tier="shard",
    title="Buffers for communication do not fit",
    cleared="No bucket or all-gather buffer is at the failing moment.",
    prior=-1.2,
    marks=(
        Mark("communication-buffers-bucket", 3.0, "a bucket", "DeepSpeed zero config reduce_bucket_size, allgather_bucket_size: elements", when=_bucket),
        Mark("communication-buffers-unit", 1.0, "a gathered unit", "FSDP gathers a unit into one buffer", when=_unit),
        Mark(
            "communication-buffers-whole",
            3.0,
            "the whole model is one unit",
            "FSDP without a wrap policy gathers all parameters into one buffer",
            when=_whole,
        ),
        Mark(
            "communication-buffers-one-unit",
            2.5,
            "no wrapping policy",
            "torch fully_sharded_data_parallel.py: without auto_wrap_policy only the module that is given is a unit",
            when=lambda run, e: "only the model itself is wrapped" if _one_unit(run) and not in_phase(e, "save", "load", "sync", "resume") else None,
        ),
        Mark(
            "communication-buffers-wrapping",
            4.0,
            "wrapping adds the model's size once more",
            "torch/nn/parallel/distributed.py _ddp_init_helper: dist.Reducer allocates buckets for all gradients when the model is wrapped",
            when=_wrapping,
        ),
        Mark(
            "communication-buffers-collective",
            3.0,
            "in a collective",
            "NCCL's buffers come from cudaMalloc, outside PyTorch's allocator (nccl alloc.h)",
            when=_collective,
        ),
        Mark(
            "communication-buffers-cached", 2.5, "starved by the cache", "c10 caching allocator returns memory only when its own cudaMalloc fails", when=_cached
        ),
        Mark(
            "communication-buffers-frame",
            3.5,
            "a bucket is being allocated",
            "DeepSpeed stage_1_and_2.py: buf_0, buf_1 = torch.empty(int(self.reduce_bucket_size)); torch reducer bucket; contiguous_gradients",
            pattern=(
                r"_flatten_dense_tensors|flatten_dense_tensors\(|_allreduce_\w+_grads|reduce_bucket_size|allgather_bucket_size|\bbuf_[01]\s*=|ipg_buffer|initialize_ipg|_allreduce_bucket|reducer\.py|"
                r"param_and_grad_buffer\.py:\w*bucket"
            ),
            on="frame",
        ),
        Mark(
            "communication-buffers-reduce",
            2.5,
            "a unit's whole gradients are packed or widened for their reduction",
            "torch fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce: reduce_scatter_input in the reduce dtype; fsdp/_runtime_utils.py "
            "_post_backward_hook: flat_param.grad.to(handle._reduce_dtype)",
            pattern=r"_fsdp_collectives\.py:foreach_reduce\b|_runtime_utils\.py:_(?:post_backward_hook: .*_reduce_dtype|reduce_grad|get_reduce_scatter)",
            on="frame",
        ),
        Mark(
            "communication-buffers-parameters",
            3.0,
            "a bucket of parameters or gradients is being made for a collective",
            "apex contrib/optimizers/distributed_fused_adam.py: params_bucket, grads_bucket are gathered and scattered whole",
            pattern=r":_?(?:try_)?start_bucket_\w+_sync: \w+\.(?:params|grads)_bucket\b",
            on="frame",
        ),
        Mark(
            "communication-buffers-joined",
            4.0,
            "all gradients are joined in one tensor before they are reduced",
            "torch.cat and torch._utils._flatten_dense_tensors copy: the joined tensor is as large as all gradients together",
            pattern=r"torch\.(?:cat|concat|hstack)\(\s*\[?[^\n]{0,80}(?<!requires_)(?<!no_)grads?\b|torch\.(?:cat|concat)\(\s*all_grad|parameters_to_vector\([^\n]{0,80}grad",
            on="frame",
        ),
        Mark(
            "communication-buffers-gather",
            1.5,
            "parameters of a unit are being gathered",
            "torch FSDP _alloc_padded_unsharded_flat_param, foreach_all_gather; DeepSpeed partition_parameters._all_gather",
            pattern=_GATHERS,
            on="frame",
            when=lambda _, e: None if in_phase(e, "save", "load", "sync") else "",
        ),
        Mark(
            "communication-buffers-stays",
            2.5,
            "gathered units stay",
            "torch.distributed.fsdp.fully_shard: reshard_after_forward=False keeps unsharded parameters from forward to backward; SHARD_GRAD_OP alike",
            pattern=_GATHERS,
            on="frame",
            when=_stays,
        ),
        Mark(
            "communication-buffers-replica",
            3.0,
            "one card runs it, replicas do not",
            "torch DistributedDataParallel: without gradient_as_bucket_view the reducer's buckets are as large as all gradients, beside them",
            when=lambda run, e: observed.one_card_runs(e) if run.job.parallel.strategy == "ddp" and in_phase(e, "backward") else None,
        ),
        Mark(
            "communication-buffers-nccl-setting",
            3.5,
            "memory rises with a setting of NCCL",
            "NCCL user guide, environment variables: NCCL_BUFFSIZE bytes for each channel and peer, channels by NCCL_MIN_NCHANNELS and NCCL_IB_HCA",
            when=lambda _, e: observed.rises_with_nccl(e),
        ),
        Mark(
            "communication-buffers-nccl",
            2.0,
            "NCCL reports that memory ran out",
            "NCCL include/alloc.h WARN Cuda failure 'out of memory', 'Failed to CUDA calloc'",
            pattern=r"NCCL WARN .*(out of memory|Failed to CUDA (calloc|malloc))|ncclUnhandledCudaError|NCCL error .*unhandled cuda error",
        ),
        *share_marks("communication-buffers", "communication", some=0.15, most=0.3, weights=(1.0, 1.0), noun="communication buffers"),
        *snapshots.part_marks("communication-buffers", "communication"),
    ),
    form=_form,
    remedies=("smaller-buckets", "limit-all-gathers", "empty-cache"),
    fires=(
        Example(
            "DeepSpeed's second bucket",
            job=job(
                "google-bert/bert-base-uncased", parallel="{strategy: zero2, shard: 4, bucket_elements: 500000000}", precision="{weights: fp16, compute: fp16}"
            ),
            text=trace("deepspeed/runtime/zero/stage_1_and_2.py|backward|buf_1 = torch.empty(int(self.reduce_bucket_size), dtype=self.dtype)")
            + oom("954.00 MiB", allocated=13.4, capacity=14.76),
        ),
    ),
    quiet=(Example("in the loss", text=trace("torch/nn/functional.py|cross_entropy") + oom("3.91 GiB", allocated=75.0)),),
)
