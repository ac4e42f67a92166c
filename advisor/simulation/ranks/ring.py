"""Context parallelism: a sequence cut over the ranks of a group, keys and values sent round, by torch's own ring attention.

Read: torch 2.13 distributed/tensor/experimental/_context_parallel/_attention.py ``context_parallel`` (shards the batch and the rotary table in place
while a step runs, head and tail of the sequence together; gathers keys and values unless told to rotate them); torchtitan 0.2.0
distributed/utils.py ``create_context_parallel_ctx`` and train.py, which give it tokens and rotary table, not to be restored but for the table;
transformers 5.24 trainer.py ``_prepare_context_parallel_inputs`` (labels shifted before they are cut, positions), accelerate 1.15 big_modeling.py
``_attach_context_parallel_hooks`` (attention is given no mask). Positions jump where head and tail are cut together, on all ranks but the last, whose
two parts adjoin; transformers takes that for packed sequences and makes a mask, which attention is not given then.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh

from advisor.job import Job
from advisor.simulation.frameworks import ON_ACCELERATE
from advisor.simulation.patching import patched
from advisor.simulation.recorder import Recorder
from advisor.simulation.request import CannotProbe

HALF = frozenset({"bf16", "fp16"})


def degree(job: Job) -> int:
    """Ranks that a sequence is cut over; they are among those that parameters are divided over."""
    return job.parallel.context or 1


def why_not(job: Job) -> str | None:
    """What a ring is not run with, in words."""
    parallel = job.parallel
    if degree(job) == 1:
        return None
    if not _titan(job) and not (job.framework.name in ON_ACCELERATE and _hooks() is not None):
        return f"context parallelism outside torchtitan and accelerate ({job.framework.name or 'an unknown framework'}'s own)"
    if job.objective not in (None, "pretrain", "sft") or job.activations.loss not in (None, "full-fp32", "full"):
        return "context parallelism under other losses than a language model's own"
    if parallel.context_kind == "ulysses":
        return "context parallelism by heads (Ulysses)"
    if parallel.strategy != "fsdp2" or (parallel.shard or 1) % degree(job):
        return f"context parallelism over other ranks than FSDP2's ({parallel.strategy}, {parallel.shard or 1} shards)"
    if (parallel.tensor or 1) > 1 or (parallel.pipeline or 1) > 1:
        return "context parallelism beside other ways to divide a model"
    if job.activations.attention not in (None, "sdpa") or job.precision.compute not in HALF:
        return "context parallelism without fused attention, which torch's ring is made of"
    return None


def _titan(job: Job) -> bool:
    return job.model.source == "torchtitan"


def _hooks() -> Any:
    """accelerate's own function (since 1.10); None where it has none."""
    try:
        return getattr(importlib.import_module("accelerate.big_modeling"), "_attach_context_parallel_hooks", None)
    except ImportError:
        return None


def prepare(model: torch.nn.Module, job: Job) -> None:
    """Attention that is given no mask, as accelerate sees to it before the model is divided.

    Raises:
        CannotProbe: attention that is not causal over the whole sequence.
    """
    if degree(job) == 1 or _titan(job):
        return
    try:
        _hooks()(model)
    except ValueError as error:
        raise CannotProbe(f"{str(error).splitlines()[0]}; the estimate stands in") from None


def given(tokens: Any, job: Job) -> Any:
    """What is cut: token ids alone, or as Trainer prepares a batch, all ``[micro_batch, seq]``."""
    if degree(job) == 1 or _titan(job):
        return tokens
    labels = torch.zeros_like(tokens)
    shifted = functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)
    return {"input_ids": tokens, "labels": labels, "shift_labels": shifted, "position_ids": positions}


@contextlib.contextmanager
def around(model: Any, tokens: Any, job: Job) -> Iterator[None]:
    """Cut the batch, and torchtitan's rotary table ``[seq, ...]``, and let attention go round, while the context is open."""
    ranks = degree(job)
    if ranks == 1:
        yield
        return
    from torch.distributed.tensor.experimental import context_parallel

    parallel = job.parallel
    sizes = (parallel.replicate or 1, (parallel.shard or 1) // ranks, ranks)
    with Recorder.paused():  # made once in a run, and a mesh is at home on the host
        mesh = init_device_mesh(next(model.parameters()).device.type, sizes, mesh_dim_names=("dp_replicate", "dp_shard", "cp"))["cp"]
    cut = [tokens, model.rotation] if _titan(job) else list(tokens.values())
    along = [1, 0] if _titan(job) else [1] * len(cut)
    kernel = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:  # what is replaced is found by this name
        return kernel(*args, **kwargs)

    named = patched([(functional, "scaled_dot_product_attention", scaled_dot_product_attention), *_jumping(mesh.get_local_rank() < ranks - 1)])
    with named, context_parallel(mesh, buffers=cut, buffer_seq_dims=along, no_restore_buffers=set(cut[:1] if _titan(job) else cut)):
        yield


def _jumping(jump: bool) -> list[tuple[Any, str, Any]]:
    """transformers' question whether positions jump (a sum of jumps that is nowhere but zero), which on meta have no values."""
    masking: Any = sys.modules.get("transformers.masking_utils")
    ask = getattr(masking, "find_packed_sequence_indices", None)
    if ask is None:
        return []

    def find_packed_sequence_indices(positions: torch.Tensor) -> Any:
        with patched([(torch.Tensor, "__bool__", lambda _: not jump)]) if positions.is_meta else contextlib.nullcontext():
            return ask(positions)

    return [(masking, "find_packed_sequence_indices", find_packed_sequence_indices)]
