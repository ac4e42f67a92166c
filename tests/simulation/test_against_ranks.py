"""Simulated ranks against real ones: the same jobs over gloo in two and in four processes, every birth and death of rank 0 compared.

What legitimately differs there, each by name, and nothing else is left out:

* ``step counters``, ``scalar constants``: as in ``test_against_cpu``.
* ``gloo's clone``: ProcessGroupGloo copies the input of a reduce-scatter (``aten::split.Tensor`` of the flat gradients); NCCL reads it in place.
* ``DDP's bucket order``: after the first step the reducer sends the order of its buckets as int32, through pinned memory on a GPU.
* ``DDP's division``: with gloo's result the bucket is divided as it is filled (``mul.out``), with a hook it is filled (``copy_``): the same bytes.
* ``gloo's thread`` lets go of a buffer when it has been sent, which may be after the statement that ends it: what collectives are given and
  return, FSDP's flat buffers, and DDP's of the buffers that it broadcasts before a step, end as often and as large, but their ends have no place
  in the order.
* a ring's attention is made of CUDA's fused kernels, which a CPU has not: both are given their outputs' shapes (``ranks.fused_on_cpu``).
* deaths next to each other may swap: one statement ends several tensors.
"""

import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import ranks
from tests.simulation.conftest import CONFIGS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

MIXED = {"precision": {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "reduce": "fp32"}}
FULL = {"activations": {"checkpointing": "full", "reentrant": False, "attention": "sdpa"}}
LORA = {"method": {"kind": "lora", "rank": 4}}
ACCUMULATED = {"batch": {"micro_batch": 2, "seq_len": 32, "gradient_accumulation": 2}}
APART = {"wrap": {"embeddings": "own unit"}}


def _over(strategy: str, **fields: Any) -> dict[str, Any]:
    return {"parallel": {"strategy": strategy, "shard": 2, "replicate": 1, **fields}}


TITAN = {"model": {"config": CONFIGS["llama"], "source": "torchtitan"}, "framework": {"name": "torchtitan"}}
SELECTIVE = {"activations": {"checkpointing": "selective", "selective": {"policy": "op"}, "attention": "sdpa"}}
DDP = {"shard": 1, "replicate": 2}
TENSOR = {"shard": 1, "tensor": 2}
TRAINER = {"framework": {"name": "hf-trainer"}}
HOME = {"offload": dict.fromkeys(("parameters", "gradients", "optimizer"), "cpu")}
JOBS: dict[str, dict[str, Any]] = {
    "fsdp2": _over("fsdp2"),
    "fsdp2, mixed precision": {**_over("fsdp2"), **MIXED},
    "fsdp2, checkpointing": {**_over("fsdp2"), **MIXED, **FULL},
    "fsdp2, not resharded": {**_over("fsdp2", reshard_after_forward=False), **MIXED},
    "fsdp2, embeddings apart": {**_over("fsdp2", **APART), **MIXED},
    "fsdp2, lora": {**_over("fsdp2"), **LORA},
    "fsdp2, accumulation": {**_over("fsdp2", sync_each_microbatch=False), **ACCUMULATED},
    "fsdp2, uneven shards": {**_over("fsdp2"), "model": {"config": {**CONFIGS["llama"], "vocab_size": 257, "intermediate_size": 161}}},
    "fsdp2 by accelerate": {**_over("fsdp2"), **TRAINER},
    "fsdp2 by accelerate, lora": {**_over("fsdp2"), **TRAINER, **LORA, **FULL},
    "fsdp1": _over("fsdp1"),
    "fsdp1, mixed precision": {**_over("fsdp1"), **MIXED},
    "fsdp1, lora": {**_over("fsdp1"), **LORA},
    "ddp": _over("ddp", **DDP),
    "ddp, gradients as bucket views": _over("ddp", **DDP, gradient_as_bucket_view=True),
    "fsdp2, shards on the host": {**_over("fsdp2"), **MIXED, **FULL, **HOME},
    "fsdp2, lora, shards on the host": {**_over("fsdp2"), **LORA, **HOME},
    "fsdp1, shards on the host": {**_over("fsdp1"), **HOME},
    "fsdp1, mixed precision, shards on the host": {**_over("fsdp1"), **MIXED, **FULL, **HOME},
    "fsdp1, lora, shards on the host": {**_over("fsdp1"), **LORA, **HOME},
    "torchtitan, selective by operators": {**_over("fsdp2"), **MIXED, **TITAN, **SELECTIVE},
    "torchtitan 0.2": {**_over("fsdp2"), **MIXED, **TITAN, **FULL, "framework": {"name": "torchtitan", "versions": {"torchtitan": "0.2.0"}}},
    "tensor parallel": _over("none", **TENSOR),
    "tensor and sequence parallel, tied": {**_over("none", **TENSOR, sequence=True), "model": {"config": CONFIGS["qwen3"]}},
    "transformers' tensor parallel plan": {**_over("none", **TENSOR), **TRAINER},
}
FOUR = {"hardware": {"gpu": "a100-80gb", "gpus_per_node": 4}}
OF_FOUR: dict[str, dict[str, Any]] = {
    "hybrid sharding": {**_over("fsdp2", replicate=2), **MIXED},
    "four shards, uneven": {**_over("fsdp2", shard=4), "model": {"config": {**CONFIGS["llama"], "vocab_size": 257, "intermediate_size": 161}}},
    "fsdp2 over tensor and sequence parallel": {**_over("fsdp2", tensor=2, sequence=True), **MIXED, **FULL, **FOUR},
    "transformers' plans of both": {**_over("fsdp2", tensor=2), **TRAINER, **FOUR},
}


def _staged(strategy: str = "none", **fields: Any) -> dict[str, Any]:
    return {"parallel": {"strategy": strategy, "pipeline": 2, "microbatches": 4, **fields}, "model": {"config": {**CONFIGS["llama"], "num_hidden_layers": 5}}}


DEEP = {"model": {"config": {**CONFIGS["llama"], "num_hidden_layers": 5}, "source": "torchtitan"}, "framework": {"name": "torchtitan"}}
STAGED: dict[str, dict[str, Any]] = {
    "stages": _staged(),
    "stages, checkpointing": {**_staged(microbatches=3), **FULL},
    "stages, interleaved": _staged(virtual_stages=2),
    "stages of torchtitan": {**_staged(), **DEEP},
}
STAGED_OF_FOUR: dict[str, dict[str, Any]] = {
    "four stages": {**_staged(pipeline=4, microbatches=5), "hardware": FOUR["hardware"]},
    "fsdp2 within stages": {**_staged("fsdp2", shard=2), **MIXED, **FOUR},
    "fsdp2 within torchtitan's stages": {**_staged("fsdp2", shard=2), **MIXED, **DEEP, **FOUR},
}
RINGS: dict[str, dict[str, Any]] = {
    "ring": {**_over("fsdp2", context=2), **MIXED, **TITAN},
    "ring, checkpointing": {**_over("fsdp2", context=2), **MIXED, **TITAN, **FULL},
    "ring by accelerate": {**_over("fsdp2", context=2), **TRAINER, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"}},
}
RINGS_OF_FOUR: dict[str, dict[str, Any]] = {"ring of four": {**_over("fsdp2", shard=4, context=4), **MIXED, **TITAN, **FOUR}}
BY_WORLD = {2: {**JOBS, **STAGED, **RINGS}, 4: {**OF_FOUR, **STAGED_OF_FOUR, **RINGS_OF_FOUR}}
WATCHED = {
    **dict.fromkeys((*JOBS, *OF_FOUR), (0,)), **dict.fromkeys(STAGED, (0, 1)), **dict.fromkeys(STAGED_OF_FOUR, (0, 2)),
    "four stages": (0, 1, 2, 3), **dict.fromkeys(RINGS, (0, 1)), **dict.fromkeys(RINGS_OF_FOUR, (0, 3)),
}  # fmt: skip
AGAIN = 3  # runs of real ranks where the first differed: what the probe does not do, none of them does
Row = tuple[str, int, str, tuple[int, ...], str, str, str]
# What collectives are given and return, flat: gathered units and FSDP2's reductions; DDP's buffers; FSDP1's whole gradients, and their shards.
BUFFERS = {
    ("aten::empty.memory_format", "forward"), ("aten::empty.memory_format", "backward"),
    ("aten::cat", "forward"), ("aten::cat", "backward"), ("aten::empty_like", "backward"),
}  # fmt: skip


def _job(sections: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {
        "version": 1, "model": {"config": CONFIGS["llama"]}, "precision": {"weights": "fp32", "compute": "fp32", "mixed": "none"},
        "optimizer": {"name": "adamw", "implementation": "foreach"}, "batch": {"micro_batch": 2, "seq_len": 32, "gradient_accumulation": 1},
        "activations": {"checkpointing": "none", "attention": "sdpa"}, "framework": {"name": "custom"},
        "hardware": {"gpu": "a100-80gb", "gpus_per_node": 2},
    }  # fmt: skip
    return {**base, **sections}


def _run(folder: Path, names: set[str] | None = None) -> dict[tuple[str, int], list[list[Any]]]:
    """What the watched ranks of two, and of four, saw of each job (of these); one a stage of a pipeline, else rank 0."""
    folder.mkdir(exist_ok=True)
    chosen = {world: {name: job for name, job in jobs.items() if names is None or name in names} for world, jobs in BY_WORLD.items()}
    jobs = {world: {name: (_job(sections), WATCHED[name]) for name, sections in named.items()} for world, named in chosen.items() if named}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.simulation.ranks", str(folder / "jobs.json"), str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = {(world, rank): json.loads((folder / f"of-{world}-{rank}.json").read_text()) for world in jobs for rank in range(world)}
    return {(name, rank): rows for (_, rank), found in seen.items() for name, rows in found.items()}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[list[Any]]]:
    """All jobs, in one start of the libraries."""
    return _run(tmp_path_factory.mktemp("ranks"))


def _left(rows: list[list[Any]]) -> list[Row]:
    """The rows without what is named above."""
    found: list[Row] = []
    sent: list[Row] = []
    for kind, size, operator, shape, dtype, phase, module in rows:
        if (not shape and size <= 8) or operator == "cublas workspace":
            continue
        if (operator == "aten::split.Tensor" and phase == "backward" and not module.count("rotary")) or (dtype == "int32" and len(shape) == 1):
            continue  # gloo's clone; DDP's bucket order
        named = "a bucket" if operator in ("aten::mul.out", "aten::copy_") else operator
        flat = kind != "birth" and len(shape) == 1 and (named, phase) in BUFFERS
        (sent if flat or kind == "sent" else found).append((kind, size, named, tuple(shape), dtype, phase, module))
    ordered = [row for kind, run in groupby(found, key=lambda r: r[0]) for row in (sorted(run) if kind == "death" else run)]
    return ordered + sorted(sent)


@pytest.mark.parametrize(("name", "rank"), [(name, rank) for name, ranks in WATCHED.items() for rank in ranks])
def test_every_birth_and_death_is_that_of_a_real_rank(name: str, rank: int, real: dict[tuple[str, int], list[list[Any]]], tmp_path: Path) -> None:
    """Where they differ the ranks are run again: gloo's thread has its own pace and may hold what a sum would take the place of; the probe has none."""
    simulated = _left(ranks.seen(_job({**BY_WORLD[2], **BY_WORLD[4]}[name]), rank=rank))
    seen = _left(real[name, rank])
    for again in range(AGAIN):
        if simulated != seen:
            seen = _left(_run(tmp_path / str(again), {name})[name, rank])
    assert simulated == seen
    assert len(simulated) > 500


def test_what_is_left_out_is_gloos_clone_of_the_reduced_gradients(real: dict[tuple[str, int], list[list[Any]]]) -> None:
    """One a sharded unit and step, as large as the unit's gradients: two layers and the root, or all units that train."""
    clones = [row for row in real["fsdp2", 0] if row[0] == "birth" and row[2] == "aten::split.Tensor" and row[5] == "backward"]
    layer = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 160 + 2 * 64
    root = 2 * 256 * 64 + 64
    assert sorted(row[1] for row in clones) == sorted([4 * layer] * 4 + [4 * root] * 2)
