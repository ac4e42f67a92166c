"""Settings that cannot both hold, each as one sentence: what was read, why it cannot be, what is counted instead."""

from __future__ import annotations

import re
from collections.abc import Callable

from advisor.job import Job
from advisor.resolving import family
from advisor.resolving.quant_storage import BYTES, quant_storage
from advisor.run import Run

_NAMES = {"zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp1": "FSDP", "fsdp2": "FSDP2", "ddp": "DDP", "megatron": "Megatron"}


def contradictions(run: Run) -> tuple[str, ...]:
    """Sentences for the report; empty where the job can run as it is written."""
    return tuple(sentence for check in _CHECKS if (sentence := check(run)) is not None)


def _conflicting_strategies(run: Run) -> str | None:
    fact = run.facts.get("parallel.strategy")
    if fact is None or not run.job.framework.name:
        return None
    framework, strategy = run.job.framework.name, run.job.parallel.strategy or "none"
    if (framework == "torchtitan" and strategy in family.ZERO) or (framework == "deepspeed" and strategy in family.FSDP):
        return f"{framework} was read as the framework and {_NAMES.get(strategy, strategy)} as the strategy, which it does not have: one of the two is wrong."
    return None


def _no_bf16(run: Run) -> str | None:
    card, compute = run.card, run.job.precision.compute
    if card is None or card.sm is None or card.vendor.lower() != "nvidia" or compute is None:
        return None
    wanted = {"bf16": 80, "fp8": 89, "mxfp8": 100, "nvfp4": 100}.get(compute)
    if wanted is None or card.sm >= wanted:
        return None
    why = "torch emulates it, slowly" if compute == "bf16" else "its kernels do not exist there"
    use = "bf16" if card.sm >= 80 else "fp16"  # bfloat16 has fp32's range: nothing is scaled, and nothing overflows
    return f"{compute} is asked for on the {card.name} (compute capability {card.capability}), which has no {compute} arithmetic: {why}. Use {use}."


def _quantised_and_full(run: Run) -> str | None:
    method = run.job.method
    if method.base in family.QUANTISED and method.kind == "full":
        return f"method.kind is full and the base is held in {method.base}: quantised weights have no gradients. Train adapters, or leave the base unquantised."
    return None


def _steps_do_not_multiply(run: Run) -> str | None:
    b, p = run.job.batch, run.job.parallel
    if b.global_batch is None or b.micro_batch is None or not all(_was_read(run, f"batch.{name}") for name in ("micro_batch", "gradient_accumulation")):
        return None
    ranks = max(1, (p.shard or 1) * (p.replicate or 1) // (p.context or 1))
    steps = ((p.microbatches if (p.pipeline or 1) > 1 else b.gradient_accumulation) or 1) * b.micro_batch * ranks
    if steps == b.global_batch or not _was_read(run, "hardware.gpus_per_node"):
        return None
    product = f"micro batch {b.micro_batch} x accumulation {b.gradient_accumulation or 1} x {ranks} data-parallel ranks"
    return f"A step of {b.global_batch} sequences is asked for, and {product} is {steps}: one of them is not what runs. The micro batch was counted as written."


def _was_read(run: Run, field: str) -> bool:
    fact = run.facts.get(field)
    return fact is not None and fact.kind in ("read", "stated")


def _more_ranks_than_gpus(run: Run) -> str | None:
    hardware = run.job.hardware
    if hardware.gpus_per_node is None:
        return None
    gpus, nodes, p = hardware.gpus_per_node * (hardware.nodes or 1), hardware.nodes or 1, run.job.parallel
    product = f"shard {p.shard or 1} x replicate {p.replicate or 1} x tensor {p.tensor or 1} x pipeline {p.pipeline or 1} = {run.world}"
    if run.world == gpus or p.device_map is not None:
        return None
    verb = "more GPUs than there are" if run.world > gpus else "fewer GPUs than there are"
    return f"{product} needs {verb}: {hardware.gpus_per_node} a node on {nodes} node{'s' if nodes > 1 else ''} = {gpus}. The groups were counted as written."


def _sharding_on_one_gpu(run: Run) -> str | None:
    strategy = run.job.parallel.strategy
    if strategy in family.SHARDING and run.world == 1 and run.facts.get("parallel.strategy") is not None:
        return f"{_NAMES.get(strategy, strategy)} over one GPU divides nothing."
    return None


def _context_beyond_shards(run: Run) -> str | None:
    p = run.job.parallel
    ranks = (p.shard or 1) * (p.replicate or 1)
    if (p.context or 1) > ranks and p.strategy not in family.MEGATRON_STRATEGIES:
        return f"parallel.context is {p.context}, which is more than the {ranks} data-parallel ranks that it is taken from."
    return None


def _expert_beyond_ranks(run: Run) -> str | None:
    p = run.job.parallel
    if (p.expert or 1) > run.world:
        return f"parallel.expert is {p.expert}, which is more than the {run.world} GPUs of the job."
    return None


def _offload_without_zero(run: Run) -> str | None:
    job: Job = run.job
    if job.offload.parameters == "nvme" and job.parallel.strategy != "zero3":
        return "offload.parameters is nvme, which only ZeRO-3 can do."
    if job.offload.parameters == "cpu" and job.parallel.strategy in ("zero1", "zero2"):
        return f"offload.parameters is cpu under {_NAMES[job.parallel.strategy]}, which keeps whole parameters on the card: DeepSpeed ignores it below stage 3."
    return None


def _packed_otherwise(run: Run) -> str | None:
    """torch distributed/fsdp/_flat_param.py _validate_tensors_to_flatten; accelerate 1.14 fsdp_utils.py leaves frozen Params4bit of bytes out of FSDP2."""
    found, strategy = quant_storage(run.job, run.seen), run.job.parallel.strategy
    if found is None or strategy not in family.FSDP:
        return None
    storage, where = found
    advice = "Set bnb_4bit_quant_storage to the dtype that the other weights are loaded in."
    if storage in (BYTES, "int8"):
        what = "stops with 'Cannot flatten integer dtype tensors'" if strategy == "fsdp1" else "leaves them whole on every rank (accelerate before 1.14 stops)"
        return f"The 4-bit weights are packed in {storage} ({where}), and {_NAMES[strategy]} divides float tensors only: it {what}. {advice}"
    loaded = run.job.load.dtype if run.job.load is not None else None
    others = loaded if loaded is not None and _was_read(run, "load.dtype") else None
    if strategy == "fsdp1" and others is not None and others != storage:
        return (
            f"The 4-bit weights are packed in {storage} ({where}) and the others are loaded in {others}: FSDP puts one dtype in a flat tensor and stops "
            f"with 'Must flatten tensors with uniform dtype'. {advice}"
        )
    return None


def _steps_before_the_sum(run: Run) -> str | None:
    """torchtune 0.6 (recipes/full_finetune_distributed.py and the like) and transformers' layerwise optimizers raise; elsewhere each micro batch is a step."""
    steps = run.job.batch.gradient_accumulation or 1
    if not run.job.optimizer.in_backward or steps == 1:
        return None
    raises = (
        f"{run.job.framework.name} stops with an error" if run.job.framework.name in ("torchtune", "hf-trainer", "llama-factory") else "nothing is accumulated"
    )
    return (
        f"Each parameter is to be stepped as soon as its gradient exists (optimizer.in_backward), and gradients are to be accumulated over {steps} micro "
        f"batches: {raises}. Set the accumulation to 1, or leave the optimizer out of the backward pass."
    )


def _refused_reference(run: Run) -> str | None:
    """trl DPOTrainer 0.7 to 0.27: ValueError for both, from 0.8 on unless force_use_ref_model is set; from 0.28 on the model that is passed is kept."""
    fact, versions, objective = run.facts.get("reference"), run.job.framework.versions or {}, run.job.objective
    if fact is None or fact.kind != "read" or run.job.reference != "copy" or objective != "dpo" or run.job.method.kind not in family.ADAPTERS:
        return None
    version = re.match(r"0\.(\d+)", str(versions.get("trl", "")))
    forced = run.seen is not None and any(key.rpartition(".")[2] == "force_use_ref_model" for _, key, _ in run.seen.seen_keys)
    if version is None or int(version[1]) >= 28 or forced:
        return None
    return (
        f"{fact.where} passes a reference model beside adapters: TRL {versions['trl']} raises a ValueError for both where a peft_config is given. "
        "Pass ref_model=None: the base with its adapters off is the reference."
    )


def _adapter_off_without_adapters(run: Run) -> str | None:
    if run.job.reference == "adapter-off" and run.job.method.kind not in family.ADAPTERS:
        return f"reference is adapter-off and method.kind is {run.job.method.kind}: without adapters there is nothing to switch off, so a copy is needed."
    return None


def _longer_than_positions(run: Run) -> str | None:
    architecture, seq_len = run.architecture, run.job.batch.seq_len
    if architecture is None or architecture.max_positions is None or seq_len is None or seq_len <= architecture.max_positions:
        return None
    return f"batch.seq_len {seq_len:,} is above the model's max_position_embeddings {architecture.max_positions:,}: it runs only with rescaled positions."


def _one_unit(run: Run) -> str | None:
    """torch distributed/fsdp fully_sharded_data_parallel.py: without auto_wrap_policy only the module that is given is a unit."""
    wrap = run.job.parallel.wrap
    if wrap is None or wrap.blocks != "root" or run.job.parallel.strategy not in family.FSDP:
        return None
    fact = run.facts.get("parallel.wrap.blocks")
    said = fact.why or fact.where if fact is not None else None
    return (
        f"FSDP wraps nothing but the model itself{f': {said}' if said else ''}. The whole model is one unit, gathered at once for the forward pass and kept "
        "until the backward pass has ended, and its gradient is whole too: sharding then saves the optimizer's state and little else. Wrap each layer."
    )


def _no_such_modules(run: Run) -> str | None:
    """peft tuners/tuners_utils.py inject_adapter: "Target modules ... not found in the base model"."""
    architecture, targets = run.architecture, run.job.method.targets
    if architecture is None or run.job.method.kind not in family.ADAPTERS or not isinstance(targets, list | tuple) or not targets:
        return None
    blocks = (*architecture.blocks, *architecture.vision, *architecture.mtp)
    tensors = [t for t in (*(t for block in blocks for t in block.tensors), *architecture.outer) if len(t.shape) >= 2]
    there = {t.name for t in tensors} | {t.name.rpartition(".")[2] for t in tensors}
    names = dict.fromkeys(t.name.rpartition(".")[2] for t in tensors if t.role not in ("embedding", "position", "norm"))
    if not names or any(target in there or target.rpartition(".")[2] in there for target in targets):
        return None
    return (
        f"method.targets names {', '.join(targets[:8])}, which the model does not have: no adapter is made, and peft stops with "
        f'"Target modules not found". Its modules are {", ".join(list(names)[:16])}; or write all-linear.'
    )


_CHECKS: tuple[Callable[[Run], str | None], ...] = (
    _conflicting_strategies,
    _no_bf16,
    _quantised_and_full,
    _steps_do_not_multiply,
    _more_ranks_than_gpus,
    _sharding_on_one_gpu,
    _context_beyond_shards,
    _expert_beyond_ranks,
    _offload_without_zero,
    _packed_otherwise,
    _steps_before_the_sum,
    _refused_reference,
    _adapter_off_without_adapters,
    _longer_than_positions,
    _no_such_modules,
    _one_unit,
)
