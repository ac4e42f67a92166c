"""The resident weights alone are the peak (a device map with too little slack included)."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, snapshots, spreading
from advisor.rules.estimating import ledger_of
from advisor.rules.fallback.quantization_not_applied import QUANTISED_NOTHING
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import gpus, in_phase, not_one_sample, sharded
from advisor.run import Run
from advisor.units import GIB, show


def _larger(run: Run, evidence: Evidence) -> str | None:
    """As written, the weights on one card are larger than the card."""
    ledger = ledger_of(run)
    capacity = counters.of(evidence).capacity or (run.usable[0] if run.usable else None)
    if ledger is None or capacity is None:
        return None
    held = sum(h.bytes for h in ledger.peak().holdings if h.part == "weights")
    return f"the weights alone are {show(held)} on a card of {show(capacity)}" if held > 0.9 * capacity and gpus(run) < 2 else None


def _loading(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    on_card = failure is not None and failure.kind in ("gpu-memory", "gpu-driver")
    return "the failure comes while the weights are loaded" if on_card and in_phase(evidence, "load") else None


def _mapped(run: Run, _evidence: Evidence) -> str | None:
    return "the layers are spread over the cards by a device map" if run.job.parallel.device_map else None


_LIMIT = pattern(r"\bmax_memory\b[^\n]{0,60}?(\d{1,4}(?:\.\d)?)\s?(?:GiB|GB)\b", re.IGNORECASE)
SLACK = 0.06  # of a card: a context, a library's workspace and one layer's activations


def _no_slack(_run: Run, evidence: Evidence) -> str | None:
    """A device map that may fill a card to its last GiB."""
    capacity = counters.of(evidence).capacity
    if capacity is None:
        return None
    for line in evidence.lines:
        if (found := _LIMIT.search(line.text)) is not None and capacity * (1 - SLACK) <= float(found[1]) * GIB <= 1.1 * capacity:
            return f"max_memory lets the weights take {found[1]} GiB of {show(capacity)} ({line.where})"
    return None


def _spread(run: Run, evidence: Evidence) -> str | None:
    """The layers are spread by accelerate, and no sharding strategy divides them."""
    if sharded(run) or not in_phase(evidence, "load", "forward", None) or evidence.failure is None:
        return None
    for where, key, value in evidence.seen_keys:
        if key.rpartition(".")[2] == "device_map" and str(value) in spreading.MAPS:
            return f"device_map={value} fills one card after the other with weights ({where})"
    return None


def _filled(run: Run, evidence: Evidence) -> str | None:
    """The map left no room on a card for what a step needs there."""
    return spreading.filled(evidence) if evidence.failure is not None and spreading.by_device_map(run, evidence) is not None else None


def _form(run: Run, evidence: Evidence) -> Form | None:
    if _filled(run, evidence) is None:
        # a rank's part is made smaller by more tensor or pipeline stages (Megatron-LM training/arguments.py)
        megatron = run.job.framework.name in ("megatron-lm", "megatron-bridge")
        return Form(RULE.title, ("tensor-parallel", "pipeline-parallel", "larger-gpu", "more-gpus")) if megatron else None
    return Form(
        "The device map fills a card with weights and leaves no room for a step", ("leave-headroom", "smaller-micro-batch", "qlora", "offload-parameters")
    )


RULE = Rule(
    id="weights",
    tier="shard",
    title="The weights alone fill the card",
    cleared="The weights leave room on the card.",
    prior=-1.3,
    needs=("model.name",),
    marks=(
        Mark("weights-larger", 2.5, "larger than the card", "the estimate's ledger", when=_larger),
        Mark(
            "weights-unquantised",
            -3.0,
            "they are larger than they were meant to be",
            "transformers quantizer_mxfp4.py: 'we will default to dequantizing the model to bf16'",
            pattern=r"default to dequantizing the model|dequantiz(?:e|ing) the model to bf16|" + QUANTISED_NOTHING,
        ),
        Mark(
            "weights-partition",
            2.5,
            "the rank's own share of a parameter is being placed",
            "DeepSpeed runtime/zero/partition_parameters.py _partition_param: partitioned_tensor is a share, made as zero.Init goes through the modules",
            pattern=r"partition_parameters\.py:_partition_param: partitioned_tensor",
            on="frame",
        ),
        Mark(
            "weights-placed",
            1.5,
            "the rank's part of the model is placed in the dtype that it trains in",
            "Megatron-LM training/training.py get_model: model_module.cuda; core/distributed/param_and_grad_buffer.py param_data; DeepSpeed engine.py "
            "_configure_distributed_model: module.to after half() or bfloat16()",
            pattern=(
                r"megatron/training/\S*:get_model: model_module\.cuda|param_and_grad_buffer\.py:\w+: self\.param_data|"
                r":_configure_distributed_model: .*module\.to\("
            ),
            on="frame",
        ),
        Mark("weights-loading", 1.0, "while loading", "the failing phase", when=_loading),
        Mark(
            "weights-not-one-sample",
            2.2,
            "not even one sample fits",
            "accelerate utils/memory.py find_executable_batch_size halves the batch until it is none: what does not depend on the batch fills the card",
            when=lambda _, e: not_one_sample(e),
        ),
        Mark(
            "weights-map-says",
            3.0,
            "the device map found no room",
            "accelerate utils/modeling.py infer_auto_device_map: 'no modules could be assigned to the following devices due to insufficient memory', "
            "'requires n bytes of buffer for offloaded layers, which seems does not fit any GPU's remaining memory'",
            pattern=r"no modules could be assigned to the following devices|buffer for offloaded layers, which seems does not fit",
        ),
        Mark("weights-slack", 3.0, "no slack", "accelerate get_max_memory leaves room only where none is given", when=_no_slack),
        Mark(
            "weights-filled",
            3.0,
            "a card is full after loading",
            "accelerate infer_auto_device_map fills a card to max_memory, which counts weights alone; get_max_memory knows nothing of a step",
            when=_filled,
        ),
        Mark("weights-spread", 0.7, "a device map", "accelerate infer_auto_device_map", when=_spread),
        Mark("weights-map", 1.0, "a device map", "accelerate infer_auto_device_map fills a card to max_memory", when=_mapped),
        Mark(
            "weights-dispatch",
            1.5,
            "weights are placed by a device map",
            "accelerate big_modeling.dispatch_model, load_checkpoint_and_dispatch; transformers caching_allocator_warmup",
            pattern=r"dispatch_model|load_checkpoint_and_dispatch|caching_allocator_warmup|set_module_tensor_to_device",
            on="frame",
        ),
        *share_marks("weights", "weights", some=0.7, most=0.85, weights=(0.5, 1.0), noun="weights"),
        *snapshots.part_marks("weights", "weights"),
    ),
    form=_form,
    remedies=("qlora", "zero-3", "fsdp", "offload-parameters", "tensor-parallel", "larger-gpu"),
    fires=(
        Example(
            "a 70B on one card",
            job=job(
                "meta-llama/Llama-2-70b-hf",
                precision="{weights: bf16}",
                method="{kind: lora, rank: 8}",
                hardware="{gpu: a100-80gb}",
                batch="{micro_batch: 1, seq_len: 512}",
            ),
            text=trace("accelerate/big_modeling.py|dispatch_model", "accelerate/utils/modeling.py|set_module_tensor_to_device|new_value = value.to(device)")
            + oom("448.00 MiB", allocated=78.0),
        ),
    ),
    quiet=(
        Example(
            "a small model",
            job=job("Qwen/Qwen2.5-0.5B", precision="{weights: bf16}", batch="{micro_batch: 16, seq_len: 4096}", hardware="{gpu: a100-80gb}"),
            text=trace("torch/nn/functional.py|cross_entropy") + oom("18.55 GiB", allocated=65.0, free=12.0),
        ),
    ),
)
