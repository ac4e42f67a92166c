"""What the tensors of DeepSpeed's engine are, by the function of its own code that asked for them (read in 0.19.8)."""

from __future__ import annotations

from pathlib import PurePosixPath

from advisor.simulation.recorder import Recorder
from advisor.simulation.storages import Storage

MASTERS = ("weights", "fp32 masters")
FLAT = ("weights", "flat 16-bit parameters")
PARTITIONS = ("weights", "partitions of the parameters")
SHARE = ("gradients", "gradient partition")
WIDE = ("gradients", "fp32 gradients for the step")
JOINED = ("gradients", "gradients joined in one tensor")
NORM = ("gradients", "fp64 copy of a gradient for the norm")
BUCKET = ("communication", "reduce bucket")
REDUCED = ("communication", "gradients joined to be reduced")
GATHERED = ("communication", "all-gather output")
CUT = ("communication", "gathered parameters cut from the all-gather output")

# File and function, then the operator where a function makes several kinds ("" for any other).
NAMES: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    ("stage_1_and_2.py", "flatten_dense_tensors_aligned"): {"": FLAT},
    ("stage_1_and_2.py", "__init__"): {"aten::_to_copy": MASTERS},
    ("stage_1_and_2.py", "copy_grads_in_partition"): {"": SHARE},
    ("stage_1_and_2.py", "setup_buckets"): {"": BUCKET},
    ("stage_1_and_2.py", "allreduce_bucket"): {"": REDUCED},
    ("stage_1_and_2.py", "get_grad_norm_direct"): {"aten::_to_copy": NORM},
    ("stage_1_and_2.py", "step"): {"aten::_to_copy": WIDE, "aten::cat": JOINED},
    ("stage3.py", "_create_fp32_partitions"): {"": MASTERS},
    ("stage3.py", "_setup_for_real_optimizer"): {"aten::empty.memory_format": BUCKET, "aten::zeros": SHARE},
    ("stage3.py", "_prepare_fp32_grad_for_sub_group"): {"aten::_to_copy": WIDE, "aten::cat": JOINED},
    ("stage3.py", "get_grad_norm_direct"): {"aten::_to_copy": NORM},
    ("stage3.py", "partition_grads"): {"": SHARE},
    ("stage3.py", "_create_fp16_partitions_with_defragmentation"): {"": PARTITIONS},
    ("partition_parameters.py", "_partition_param"): {"": PARTITIONS},
    ("partition_parameters.py", "wait"): {"": CUT},
    **{("partition_parameters.py", name): {"": GATHERED} for name in ("_all_gather_dtype", "_all_gather_sequential", "_allgather_params_sequential")},
    ("coalesced_collectives.py", "reduce_scatter_coalesced"): {"": REDUCED},
    ("engine.py", "allreduce_bucket"): {"": REDUCED},
    ("unfused_optimizer.py", "<listcomp>"): {"aten::_to_copy": MASTERS},
    ("unfused_optimizer.py", "__init__"): {"aten::_to_copy": MASTERS},
    ("unfused_optimizer.py", "step"): {"aten::_to_copy": WIDE},
    ("unfused_optimizer.py", "initialize_optimizer_states"): {"": ("optimizer", "states as they are made")},
}


def label(recorder: Recorder) -> None:
    """Name what the engine's own code made and nothing else has named."""
    for storage in recorder.storages.values():
        known = _known(storage)
        if storage.part is None and known is not None:
            storage.part, storage.name = known


def _known(storage: Storage) -> tuple[str, str] | None:
    where, _, function = storage.site.partition(" ")
    made = NAMES.get((PurePosixPath(where.partition(":")[0]).name, function))
    found = None if made is None else made.get(storage.operator, made.get(""))
    # the function that flattens the parameters once also joins the last rank's gradients in every step
    return JOINED if found is FLAT and storage.phase != "build" else found
