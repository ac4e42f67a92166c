"""The wrapper widens parameters (mixed-precision policy, adapter autocast, trainable parameters to fp32)."""

from __future__ import annotations

from advisor.deviation import widened
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import rises
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import QUANTISED, in_phase, parameters, sharded
from advisor.run import Run


def _fsdp2_mixed(run: Run, _evidence: Evidence) -> str | None:
    mixed = (
        run.job.parallel.strategy == "fsdp2"
        and run.job.precision.compute in ("bf16", "fp16")
        and run.job.framework.name not in ("torchtitan", "torchtune", "verl")
    )
    loaded = run.stated.precision.weights in ("bf16", "fp16") or (run.job.load is not None and run.job.load.dtype in ("bf16", "fp16"))
    return "FSDP2 under mixed precision keeps fp32 shards of weights that were loaded in 16 bit" if mixed and loaded else None


def _rise(run: Run, evidence: Evidence) -> str | None:
    """Between two printed figures exactly that was added which widening all weights of the rank from 16 bit to fp32 adds."""
    count, job = parameters(run, evidence), run.job
    if count is None or job.method.base in QUANTISED or job.precision.weights == "fp32":
        return None
    held = count // (max(1, job.parallel.shard or 1) if sharded(run) else 1)
    return rises.matching(evidence, 2 * held, "all weights in fp32 instead of 16 bit")


_WIDENS = pattern(r"(nn/modules/module|modeling_utils)\.py:float$")


def _fault(run: Run, evidence: Evidence) -> Run | None:
    wrapped = run.job.parallel.strategy in ("fsdp1", "fsdp2") and run.job.precision.compute in ("bf16", "fp16")
    wrapped = wrapped or any(_WIDENS.search(f"{f.file}:{f.function}") for f in evidence.frames)
    if run.job.precision.weights == "fp32" or run.job.method.base in QUANTISED or not wrapped:
        return None
    return run.deviating(widened("precision.weights", "fp32", cause="framework-upcast"))


RULE = Rule(
    id="framework-upcast",
    tier="fallback",
    title="The wrapper keeps parameters in fp32 although they were loaded in 16 bit",
    cleared="Parameters stay in the dtype in which they were loaded.",
    prior=-1.2,
    marks=(
        Mark(
            "framework-upcast-fsdp2",
            1.5,
            "FSDP2 with mixed precision",
            "accelerate utils/fsdp_utils.py fsdp2_prepare_model casts parameters to fp32 when mixed_precision is not no",
            when=_fsdp2_mixed,
        ),
        Mark("framework-upcast-rise", 2.0, "the widening between two figures", "2 bytes more for each parameter; a second 16-bit copy is as large", when=_rise),
        Mark(
            "framework-upcast-warning",
            4.0,
            "the wrapper says that it widened parameters",
            "accelerate accelerator.py: 'Upcasted low precision parameters in <class> because mixed precision turned on in FSDP'",
            pattern=(
                r"[Uu]pcast(ed|ing)? (of )?(low precision|trainable|all)|Casting trainable parameters? to float32|parameters? (was|were) (up)?cast to (fp|"
                r"float)32"
            ),
        ),
        Mark(
            "framework-upcast-print",
            3.5,
            "a frozen parameter is shown in fp32 under a wrapper",
            "repr of a DTensor or parameter: dtype float32, requires_grad False",
            pattern=r"requires_grad=False.*\bfloat32|\bfloat32\b.*requires_grad=False",
            when=lambda run, _: "" if run.job.precision.compute in ("bf16", "fp16") or run.stated.precision.weights in ("bf16", "fp16") else None,
        ),
        Mark(
            "framework-upcast-module",
            4.0,
            "the whole model is being widened to fp32",
            "torch.nn.Module.float casts every floating-point parameter in place, before anything is divided",
            pattern=r"(nn/modules/module|modeling_utils)\.py:float\b|:[\w<>]+: \w*model\w*\s*=\s*\w*model\w*\.(float\(\)|to\(torch\.float32\))",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "load", None) else None,
        ),
        Mark(
            "framework-upcast-frame",
            2.5,
            "the failure comes where parameters are cast",
            "accelerate fsdp2_prepare_model / Accelerator.prepare_model; DeepSpeed _configure_optimizer; peft cast_adapter_dtype; LLaMA-Factory adapter.py",
            pattern=r"fsdp2_prepare_model|cast_adapter_dtype|upcast|_cast_to_fp32|to\(torch\.float32\)",
            on="frame",
            when=lambda _, e: None if any("other.py" in f.file for f in e.frames) else "",
        ),
    ),
    fault=_fault,
    remedies=("keep-wrapper-narrow", "upgrade", "zero-3"),
    fires=(
        Example(
            "accelerate widens under FSDP2",
            job=job(
                "Qwen/Qwen2.5-72B-Instruct",
                method="{kind: lora, rank: 16}",
                precision="{weights: bf16, compute: bf16}",
                parallel="{strategy: fsdp2, shard: 8}",
                batch="{micro_batch: 3, seq_len: 8192}",
                activations="{checkpointing: full, loss: fused-linear}",
                hardware="{gpu: h100-80gb}",
            ),
            text="UserWarning: Upcasted low precision parameters in Qwen2DecoderLayer because mixed precision turned on in FSDP.\n"
            + trace("torch/autograd/graph.py|_engine_run_backward")
            + oom("1.35 GiB", allocated=77.0),
        ),
    ),
    quiet=(Example("one card", job=job(precision="{weights: bf16}", parallel="{strategy: none}"), text=oom("512.00 MiB", allocated=76.5)),),
)
