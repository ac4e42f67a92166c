"""Tensor parallelism: a model divided within its layers, with transformers' own plan or the one that PyTorch documents.

* Trainers on accelerate: the plan of the model's class, applied by transformers' own loader (``PreTrainedModel.maybe_distribute_model``,
  5.24; the plans of 4.x are another interface), FSDP2 over the other ranks included.
* Others: ``parallelize_module`` by columns and rows as in PyTorch's tensor parallel tutorial, with sequence parallelism where the job says so.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from advisor.job import Job
from advisor.simulation.frameworks import ON_ACCELERATE
from advisor.simulation.request import CannotProbe

COLUMNS, ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


def size(job: Job) -> int:
    """Ranks that a layer is divided over."""
    return job.parallel.tensor or 1


def divided(model: Any, job: Job, mesh: DeviceMesh) -> torch.nn.Module:
    """The model with its layers divided over the mesh's dimension ``tp``.

    Raises:
        CannotProbe: a model, a method or a version whose layers are not divided here.
    """
    if job.method.kind not in (None, "full"):
        raise CannotProbe(f"the probe does not run {job.method.kind} over layers that are divided (tensor parallelism): the estimate stands in")
    tied = model.get_output_embeddings() is not None and model.get_output_embeddings().weight is model.get_input_embeddings().weight
    whole = _by_transformers(model, job) if job.framework.name in ON_ACCELERATE else _by_columns_and_rows(model, job, mesh)
    if tied:
        whole.get_output_embeddings().weight = whole.get_input_embeddings().weight
    divided: torch.nn.Module = whole
    return divided


def by_transformers(job: Job) -> bool:
    """Whether transformers divides over all ranks by itself, FSDP2 included."""
    return size(job) > 1 and job.framework.name in ON_ACCELERATE


def _by_transformers(model: Any, job: Job) -> Any:
    try:
        configuration: Any = importlib.import_module("transformers.distributed.configuration_utils")
        meshes: Any = importlib.import_module("transformers.distributed.utils").TransformersDeviceMesh
        distribute = model.maybe_distribute_model
    except (ImportError, AttributeError):
        raise CannotProbe("this version of transformers has another interface to tensor parallelism (5.24 is read): the estimate stands in") from None
    if job.parallel.sequence:
        raise CannotProbe("transformers' plans divide no sequence (sequence parallelism): the estimate stands in")
    parallel = job.parallel
    sharded = parallel.strategy == "fsdp2"
    sizes = {"dp_replicate_size": parallel.replicate or 1, "fsdp_size": parallel.shard or 1, "tp_size": size(job)}
    if not sharded and sizes["dp_replicate_size"] * sizes["fsdp_size"] > 1:
        raise CannotProbe(f"the probe does not run {parallel.strategy} beside transformers' tensor parallelism: the estimate stands in")
    written = configuration.DistributedConfig(
        **sizes, fsdp_mixed_precision=sharded and job.precision.mixed in ("autocast", "fsdp"), fsdp_cpu_offload=job.offload.parameters == "cpu"
    )
    device = next(model.parameters()).device.type
    dense = init_device_mesh(device, (1, *sizes.values()), mesh_dim_names=("pp", "dp_replicate", "fsdp", "tp"))
    experts = init_device_mesh(device, (1, sizes["dp_replicate_size"], written.efsdp_size, 1), mesh_dim_names=("pp", "dp_replicate", "efsdp", "ep"))
    return distribute(model, written, meshes(dense, experts))


def _by_columns_and_rows(model: Any, job: Job, mesh: DeviceMesh) -> Any:
    """Attention and MLP by columns and then by rows, embedding by rows, head by columns and gathered for the loss; norms on parts of the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

    from advisor.simulation.ranks.dividing import blocks

    found: Any = model.get_decoder() if hasattr(model, "get_decoder") else None
    if not all(hasattr(found, name) for name in ("embed_tokens", "layers", "norm")):
        raise CannotProbe(f"the probe has no tensor parallel plan for {type(model).__name__}: the estimate stands in")
    along: Any = Shard(1) if job.parallel.sequence else Replicate()
    outer = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=along),
        **({"norm": SequenceParallel()} if job.parallel.sequence else {}),
    }
    parallelize_module(found, mesh, outer)
    parallelize_module(model, mesh, {"lm_head": ColwiseParallel(input_layouts=along, output_layouts=Replicate())})
    for block in blocks(model):
        names = [name for name, _ in block.named_modules()]
        plan: dict[str, Any] = {n: ColwiseParallel() for n in names if n.endswith(COLUMNS)}
        plan |= {n: RowwiseParallel(output_layouts=along) for n in names if n.endswith(ROWS)}
        if len(plan) != len(COLUMNS) + len(ROWS):
            raise CannotProbe(f"the probe has no tensor parallel plan for {type(block).__name__}: the estimate stands in")
        if job.parallel.sequence:
            plan |= {name: SequenceParallel() for name in names if name in NORMS}
            plan["self_attn"] = PrepareModuleInput(input_kwarg_layouts={"hidden_states": along}, desired_input_kwarg_layouts={"hidden_states": Replicate()})
            plan["mlp"] = PrepareModuleInput(input_layouts=(along,), desired_input_layouts=(Replicate(),))
        parallelize_module(block, mesh, plan)
    if job.parallel.sequence:
        model.register_forward_pre_hook(_positions, with_kwargs=True)
    return model


def _positions(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positions of the whole sequence: the decoder would count those of its part."""
    tokens = kwargs["input_ids"]
    return args, {**kwargs, "position_ids": torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)}
