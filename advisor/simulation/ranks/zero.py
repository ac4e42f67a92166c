"""DeepSpeed's own engine around the job's model: ZeRO 0 to 3 at the job's sizes, on meta, as one rank of a group that sends nothing.

Only what a card would decide is replaced, each by name (read in DeepSpeed 0.19.8):

* the accelerator (:mod:`advisor.simulation.ranks.zero_device`), and ``record_stream``, which meta has no kernel for;
* ``build_shm_op``: would compile the operator of ranks that share a CPU; ``compiler.compile``: would load a compiler for Muon, which the engine imports;
* ``has_overflow``, ``check_using_norm``, ``_has_inf_or_nan``, ``is_invalid_grad_norm``: ask values that meta has none of, after which a step would be left out;
* ``assert_ints_same_as_other_ranks``, ``Tensor.cpu`` of a norm: other ranks' values;
* ``defragment``: would take a real buffer on the host;
* ``zeros_like(device="meta")``: the shapes that stages 1 and 2 write down are on meta in a run too, where they hold nothing.

Host tensors are refused (:mod:`advisor.simulation.zero_scope`). The optimizer is the job's own, given to the engine: DeepSpeed's FusedAdam is a
kernel that makes no tensors, as PyTorch's fused one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from advisor.arithmetic.zero import overlaps
from advisor.job import Job
from advisor.run import Run
from advisor.simulation.frameworks import CLIPS
from advisor.simulation.patching import patched
from advisor.simulation.ranks.device import Meta
from advisor.simulation.ranks.zero_device import accelerator
from advisor.simulation.recorder import Recorder
from advisor.simulation.request import CannotProbe
from advisor.simulation.tensors import META
from advisor.simulation.zero_scope import STAGES, has_sixteen_bits

MISSING = (
    "the probe runs DeepSpeed's own engine, and deepspeed is not installed in this environment: DS_BUILD_OPS=0 pip install deepspeed "
    "(it builds nothing, no GPU is needed); the estimate stands in"
)
# What the process keeps of a first job's groups: module, its variables that are None or empty at first.
KEPT = {
    "deepspeed.comm.comm": ("cdb",),
    "deepspeed.utils.groups": ("_WORLD_GROUP", "_ZERO_PARAM_INTRA_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP", "_MODEL_PARALLEL_GROUP", "mpu", "mesh_device"),
    "deepspeed.runtime.zero.partition_parameters": ("top_level_context",),
}

# Questions about values, and the modules of deepspeed.runtime that have them by name.
ASKED: dict[str, Any] = {"is_invalid_grad_norm": lambda *_: False, "assert_ints_same_as_other_ranks": lambda *_: None}
ASKING = (
    "utils", "zero.stage_1_and_2", "zero.stage3", "zero.partition_parameters", "zero.partitioned_param_coordinator", "fp16.fused_optimizer",
    "fp16.unfused_optimizer", "bf16_optimizer",
)  # fmt: skip


@contextlib.contextmanager
def opened(device: Meta | None, world: int, rank: int) -> Iterator[None]:
    """DeepSpeed takes meta for its accelerator while the context is open, and knows of no job before this one.

    Without a ``device`` it is left with the one it finds: tests let real ranks run on the CPU.

    Raises:
        CannotProbe: it is not installed, or can not be loaded here.
    """
    _loaded()
    environment = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world)}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with patched([*_of_any_device(), *(_of_meta(device) if device is not None else ())]):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _loaded() -> Any:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it looks for drivers and compilers
    try:
        return importlib.import_module("deepspeed")
    except ImportError as error:
        if error.name == "deepspeed":
            raise CannotProbe(MISSING) from None
        raise CannotProbe(f"deepspeed can not be loaded here ({error}): the estimate stands in") from None


def _of_any_device() -> Iterator[tuple[Any, str, Any]]:
    yield importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None
    yield importlib.import_module("deepspeed.runtime.compiler"), "compile", lambda *_, **__: lambda function: function
    yield torch.nn.functional, "linear", torch.nn.functional.linear  # put back afterwards: stage 3 replaces it for good
    for name, variables in KEPT.items():
        module = importlib.import_module(name)
        yield from ((module, variable, None) for variable in variables if hasattr(module, variable))
    start = importlib.import_module("deepspeed.runtime.zero.partition_parameters").Init
    yield from ((start, name, 0) for name in ("param_id", "num_persisted_parameters", "num_persisted_elements") if hasattr(start, name))


def _of_meta(device: Meta) -> Iterator[tuple[Any, str, Any]]:
    yield importlib.import_module("deepspeed.accelerator.real_accelerator"), "ds_accelerator", accelerator(device)
    yield torch.Tensor, "record_stream", lambda *_: None
    yield torch.Tensor, "cpu", _norm_on_host(torch.Tensor.cpu)
    for name, answer in ASKED.items():
        for module in (importlib.import_module(f"deepspeed.runtime.{where}") for where in ASKING):
            if hasattr(module, name):
                yield module, name, answer
    stages = [importlib.import_module(f"deepspeed.runtime.zero.{name}") for name in ("stage_1_and_2", "stage3")]
    for owner in (stages[0].DeepSpeedZeroOptimizer, stages[1].DeepSpeedZeroOptimizer_Stage3):
        yield owner, "has_overflow", _never(owner.has_overflow)
    fragmented = stages[1] if hasattr(stages[1], "defragment") else stages[1].DeepSpeedZeroOptimizer_Stage3
    yield fragmented, "defragment", _joined if fragmented is stages[1] else staticmethod(_joined)
    unfound = importlib.import_module("deepspeed.runtime.utils").CheckOverflow
    yield unfound, "_has_inf_or_nan", staticmethod(_never(unfound._has_inf_or_nan))
    yield from ((unfound, name, _never(getattr(unfound, name))) for name in ("has_overflow", "check_using_norm"))


def _norm_on_host(original: Any) -> Any:
    """A scalar that is read, as the norm of stage 3's gradients, has some value."""

    def cpu(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return torch.ones((), dtype=value.dtype) if value.is_meta and value.dim() == 0 else original(value, *args, **kwargs)

    return cpu


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Partitions moved into one buffer, which DeepSpeed makes on the card when they have gone to a real one on the host."""
    sizes = [part.numel() for part in parts]
    like = parts[0]
    for part in parts:
        part.data = torch.empty(0, dtype=part.dtype, device=part.device)
    buffer = torch.empty(sum(sizes), dtype=like.dtype, device=META)
    for part, share in zip(parts, torch.split(buffer, sizes), strict=True):
        part.data = share
    return buffer


def _never(asked: Any) -> Any:
    def found(*args: Any, **kwargs: Any) -> bool:
        asked(*args, **kwargs)  # what it makes on the way counts
        return False

    return found


def engine(recorder: Recorder, model: torch.nn.Module, optimizer: torch.optim.Optimizer, run: Run, micro_batches: int) -> Any:
    """DeepSpeed's engine over the model, watched from its making on: what its start leaves in the allocator's cache counts."""
    deepspeed = _loaded()
    before = importlib.import_module("deepspeed.runtime.zero.partition_parameters").InsertPostInitMethodToModuleSubClasses
    before.linear_bk = torch.nn.functional.linear  # what stage 3 found in its place at the process's first job, and replaces only if it is still there
    config = dict(settings(run.effective, micro_batches))
    with recorder, patched([(torch, "zeros_like", _shapes_unwatched(torch.zeros_like))]):
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def _shapes_unwatched(original: Any) -> Any:
    def zeros_like(*args: Any, **kwargs: Any) -> torch.Tensor:
        with Recorder.paused() if kwargs.get("device") == META else contextlib.nullcontext():
            made: torch.Tensor = original(*args, **kwargs)
        return made

    return zeros_like


def settings(job: Job, micro_batches: int) -> Mapping[str, Any]:
    """The job as DeepSpeed's configuration; what the job leaves open is DeepSpeed's own default."""
    parallel = job.parallel
    stage = STAGES[parallel.strategy or "none"]
    divided: dict[str, Any] = {"stage": stage}
    sizes = {
        "reduce_bucket_size": parallel.bucket_elements, "allgather_bucket_size": parallel.allgather_bucket_elements,
        "stage3_prefetch_bucket_size": parallel.prefetch_elements, "stage3_max_live_parameters": parallel.max_live_elements,
        "stage3_param_persistence_threshold": parallel.persistence_elements,
    }  # fmt: skip
    divided |= {name: size for name, size in sizes.items() if size is not None and (stage == 3 or not name.startswith("stage3"))}
    if overlaps(job):
        divided["overlap_comm"] = True
    return {
        "train_micro_batch_size_per_gpu": job.batch.micro_batch or 1,
        "gradient_accumulation_steps": micro_batches,
        **({str(job.precision.compute): {"enabled": True}} if has_sixteen_bits(job) else {}),
        "zero_optimization": divided,
        "gradient_clipping": 1.0 if job.framework.name in CLIPS else 0.0,  # Trainer hands its max_grad_norm on; DeepSpeed's own default is none
        "zero_allow_untested_optimizer": True,
    }
