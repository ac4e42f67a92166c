"""The wrapper widens parameters (mixed-precision policy, adapter autocast, trainable parameters to fp32)."""

from __future__ import annotations

import re

from advisor.deviation import widened
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import rises, tried
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import ADAPTER, QUANTISED, in_phase, parameters, sharded
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


STAGES = r"(?:\.?prepare(?!_model_for)\w*|wrap\w*|fsdp\w*|fully_shard|deepspeed\.initialize|initiali[sz]\w*|get_peft_model|from_pretrained)"
_DTYPE = r"(?:torch\.)?(?:{})\b"
_NARROW_BEFORE = pattern(
    rf"\bbefore\b[^\n]{{0,40}}?{STAGES}[^\n]{{0,60}}?{_DTYPE.format('bfloat16|float16')}|"
    rf"\bafter\b[^\n]{{0,20}}?(?:from_pretrained|load\w*)[^\n]{{0,60}}?{_DTYPE.format('bfloat16|float16')}",
    re.IGNORECASE,
)
_WIDE_AFTER = pattern(rf"\bafter\b[^\n]{{0,40}}?{STAGES}[^\n]{{0,60}}?{_DTYPE.format('float32')}", re.IGNORECASE)
DOUBLED = (1.8, 2.2)  # fp32 over 16 bit, with what stays as it was and what is gathered


def _stage(run: Run, evidence: Evidence) -> str | None:
    """Before a wrapper is put on the parameters are 16 bit, after it fp32; or what is held doubles there."""
    if run.job.method.base in QUANTISED:
        return None
    narrow = next((line for line in evidence.lines if _NARROW_BEFORE.search(line.text)), None)
    wide = next((line for line in evidence.lines if _WIDE_AFTER.search(line.text)), None)
    if narrow is not None and wide is not None:
        return f"16 bit before ({narrow.where}), fp32 after ({wide.where})"
    both = tried.before_after(evidence, STAGES)
    if both is None or both[0].memory is None or both[1].memory is None or not DOUBLED[0] <= both[1].memory / max(1, both[0].memory) <= DOUBLED[1]:
        return None
    return f"{both[0].says} before ({both[0].where}), {both[1].says} after ({both[1].where}): twice the bytes"


_ADAPTER = pattern(r"\blora_[AB]\.[\w.]{1,40}weight\b.{0,20}\bfloat32\b|autocast_adapter_dtype\W{1,3}True", re.IGNORECASE)


def _wide_adapter(run: Run, evidence: Evidence) -> str | None:
    """Adapters are shown in fp32 on a base of 16 bit, and they are no small ones."""
    hit = next((line for line in evidence.lines if _ADAPTER.search(line.text)), None)
    if hit is None or run.job.method.kind not in ADAPTER or (run.job.method.rank or 0) < LARGE_RANK:
        return None
    return f"adapters of rank {run.job.method.rank} are fp32 ({hit.where}), and so are their gradients and states"


LARGE_RANK = 64  # below it the adapters are a per cent of the model, whatever their dtype
_WIDENS = pattern(r"(nn/modules/module|modeling_utils)\.py:float$")


def _fault(run: Run, evidence: Evidence) -> Run | None:
    wrapped = run.job.parallel.strategy in ("fsdp1", "fsdp2") and run.job.precision.compute in ("bf16", "fp16")
    wrapped = wrapped or any(_WIDENS.search(f"{f.file}:{f.function}") for f in evidence.frames)
    if run.job.precision.weights == "fp32" or run.job.method.base in QUANTISED or not wrapped:
        return None
    return run.deviating(widened("precision.weights", "fp32", cause="framework-upcast"))


_MAGNITUDE = pattern(r"\b(?:lora_magnitude_vector|magnitude|dequanti[sz]ed weight|weight_norm)\b[^\n]{0,40}\b(?:torch\.)?float32\b")


RULE = Rule(
    id="framework-upcast",
    tier="fallback",
    title="The wrapper keeps parameters in fp32 although they were loaded in 16 bit",
    cleared="Parameters stay in the dtype in which they were loaded.",
    prior=-1.2,
    marks=(
        Mark(
            "framework-upcast-dora",
            3.0,
            "DoRA's weight norm is taken of a weight in fp32",
            "peft tuners/lora/layer.py, dora.py get_weight_norm: weight + scaling * lora_weight in the wider of the two dtypes",
            pattern=r"tuners/lora/\w+\.py:(?:_?get_weight_norm|_?apply_dora)|_get_weight_norm\(|get_weight_norm\(",
            on="frame",
            when=lambda _, e: "" if any(_MAGNITUDE.search(line.text) for line in e.lines) else None,
        ),
        Mark(
            "framework-upcast-fsdp2",
            1.5,
            "FSDP2 with mixed precision",
            "accelerate utils/fsdp_utils.py fsdp2_prepare_model casts parameters to fp32 when mixed_precision is not no",
            when=_fsdp2_mixed,
        ),
        Mark("framework-upcast-rise", 2.0, "the widening between two figures", "2 bytes more for each parameter; a second 16-bit copy is as large", when=_rise),
        Mark("framework-upcast-stage", 3.5, "widened at a stage", "2 bytes a parameter before, 4 after, as printed", when=_stage),
        Mark(
            "framework-upcast-adapter",
            3.0,
            "large adapters in fp32",
            "peft tuners/tuners_utils.py cast_adapter_dtype: autocast_adapter_dtype is True by default",
            when=_wide_adapter,
        ),
        Mark(
            "framework-upcast-warning",
            4.0,
            "the wrapper says that it widened parameters",
            "accelerate accelerator.py: 'Upcasted low precision parameters in <class> because mixed precision turned on in FSDP'; unsloth models/rl.py: "
            "'Switching to float32 training since model cannot work with float16'",
            pattern=(
                r"[Uu]pcast(ed|ing)? (of )?(low precision|all)|parameters? (was|were) (up)?cast to (fp|"
                r"float)32|\b[Ss]witching to (?:float32|fp32) training since\b"
            ),
        ),
        Mark(
            "framework-upcast-trainable",
            4.0,
            "the wrapper says that it widened what is trained",
            "LLaMA-Factory model/adapter.py: 'Upcasting trainable params to float32.'; of adapters that is a per cent of the model",
            pattern=r"[Uu]pcast(ed|ing)? (of )?trainable|Casting trainable parameters? to float32",
            when=lambda run, _: None if run.job.method.kind in ADAPTER and (run.job.method.rank or 0) < LARGE_RANK else "",
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
            # the wrapper that casts also shards and loads: its own frame tells only where it stands at the cast
            pattern=r":fsdp2_prepare_model: (?:.*float32|$)|cast_adapter_dtype|upcast|_cast_to_fp32|to\(torch\.float32\)|"
            r":(?:cast_(?:training|trainable)_param\w*|_?convert_(?:embedding\w*|module\w*|param\w*)_dtypes?)\b",
            on="frame",
            when=lambda _, e: None if any("other.py" in f.file for f in e.frames) else "",
        ),
    ),
    fault=_fault,
    remedies=("keep-wrapper-narrow", "upgrade", "zero-3"),
    fires=(
        Example("twice the bytes after the wrapper", text="memory before accelerator.prepare 13.5 GB\nmemory after accelerator.prepare 27.1 GB\n"),
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
