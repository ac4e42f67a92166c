"""Context parallelism: a sequence cut over the ranks of a group, keys and values sent round, by torch's own ring attention.

Read: torch 2.13 distributed/tensor/experimental/_context_parallel/_attention.py ``context_parallel`` (shards the batch and the rotary table in place
while a step runs, head and tail of the sequence together; gathers keys and values unless told to rotate them); torchtitan 0.2.0
distributed/utils.py ``create_context_parallel_ctx`` and train.py, which give it tokens and rotary table, not to be restored but for the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh

from advisor.job import Job
from advisor.simulation.patching import patched
from advisor.simulation.recorder import Recorder

HALF = frozenset({"bf16", "fp16"})


def degree(job: Job) -> int:
    """Ranks that a sequence is cut over; they are among those that parameters are divided over."""
    return job.parallel.context or 1


def why_not(job: Job) -> str | None:
    """What a ring is not run with, in words."""
    parallel = job.parallel
    if degree(job) == 1:
        return None
    if job.model.source != "torchtitan":
        return f"context parallelism outside torchtitan's model ({job.framework.name or 'an unknown framework'}'s own)"
    if parallel.context_kind == "ulysses":
        return "context parallelism by heads (Ulysses)"
    if parallel.strategy != "fsdp2" or (parallel.shard or 1) % degree(job):
        return f"context parallelism over other ranks than FSDP2's ({parallel.strategy}, {parallel.shard or 1} shards)"
    if (parallel.tensor or 1) > 1 or (parallel.pipeline or 1) > 1:
        return "context parallelism beside other ways to divide a model"
    if job.activations.attention not in (None, "sdpa") or job.precision.compute not in HALF:
        return "context parallelism without fused attention, which torch's ring is made of"
    return None


@contextlib.contextmanager
def around(model: Any, tokens: Any, job: Job) -> Iterator[None]:
    """Cut the batch ``[micro_batch, seq]`` and the rotary table ``[seq, ...]``, and let attention go round, while the context is open."""
    ranks = degree(job)
    if ranks == 1:
        yield
        return
    from torch.distributed.tensor.experimental import context_parallel

    parallel = job.parallel
    sizes = (parallel.replicate or 1, (parallel.shard or 1) // ranks, ranks)
    with Recorder.paused():  # made once in a run, and a mesh is at home on the host
        mesh = init_device_mesh(tokens.device.type, sizes, mesh_dim_names=("dp_replicate", "dp_shard", "cp"))["cp"]
    table: torch.Tensor = model.rotation
    kernel = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:  # what is replaced is found by this name
        return kernel(*args, **kwargs)

    named = patched([(functional, "scaled_dot_product_attention", scaled_dot_product_attention)])
    with named, context_parallel(mesh, buffers=[tokens, table], buffer_seq_dims=[1, 0], no_restore_buffers={tokens}):
        yield
