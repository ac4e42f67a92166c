"""fp8 keeps caches, transposes and masters, so nothing is saved."""

from __future__ import annotations

import re

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import console, counters, observed, tabled, tried
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.rules.situation import near, weight_bytes
from advisor.run import Run
from advisor.units import show

_SIXTEEN = pattern(r"\b(fp16|bf16|float16|bfloat16)\b", re.IGNORECASE)


def _applies(run: Run, evidence: Evidence) -> str | None:
    compute = run.job.precision.compute
    if observed.fp8_saves_nothing(evidence) is not None or _tried(run, evidence) is not None:
        return None
    return f"the compute dtype is {compute}" if compute in ("bf16", "fp16", "fp32") else None


def _fp8(run: Run, _evidence: Evidence) -> str | None:
    compute = run.job.precision.compute
    return f"computing in {compute} keeps the weights in their own dtype and adds narrow copies of them" if compute in ("fp8", "mxfp8", "nvfp4") else None


def _copies(run: Run, evidence: Evidence) -> str | None:
    """Allocated is the weights and about two bytes a weight more: the fp8 copy and its transpose."""
    weights, two = weight_bytes(run, None, evidence), weight_bytes(run, 2.0, evidence)
    if weights is None or two is None or _fp8(run, evidence) is None:
        return None
    asked = [size for expression, size, _ in console.sizes(evidence) if "memory_allocated" in expression]
    for held in [sample.allocated_bytes or 0 for sample in evidence.samples] + asked:
        if near(held - weights, two, 0.12) or near(held - weights, two / 2, 0.1):
            return f"{show(held)} allocated, {show(held - weights)} beyond the weights: an fp8 copy and its transpose are 1 to 2 bytes a weight"
    return None


def _runs_in_16_bit(run: Run, evidence: Evidence) -> str | None:
    """A log has a figure of the same job in 16 bit, below the card's size, where this one failed."""
    capacity = counters.of(evidence).capacity
    if _fp8(run, evidence) is None or capacity is None:
        return None
    for sample in evidence.samples:
        held = sample.peak_allocated_bytes or sample.allocated_bytes
        if held and held < capacity and _SIXTEEN.search(sample.label):
            return f"in 16 bit it peaks at {show(held)} ({sample.where}), in fp8 it fails"
    return None


def _fault(run: Run, evidence: Evidence) -> Run | None:
    two = weight_bytes(run, 2.0)
    return run.deviating(extra("weights", bytes=two, dtype="fp8", cause="fp8-not-smaller")) if two is not None and _fp8(run, evidence) else None


def _tried(_run: Run, evidence: Evidence) -> str | None:
    """Both were tried, and it saves nothing."""
    both = tried.pair(evidence, tried.FP8, tried.SIXTEEN) or tabled.pair(evidence, r"(?:use_|enable_)?(?:fp8|float8)(?:_training)?", "fp8|float8")
    return both.says if both is not None and both.saves_nothing else None


RULE = Rule(
    id="fp8-not-smaller",
    tier="fallback",
    title="fp8 adds copies of the weights instead of replacing them",
    cleared="The job does not compute in fp8.",
    prior=-0.5,
    applies=_applies,
    marks=(
        Mark(
            "fp8-not-smaller-both-layouts",
            3.5,
            "an fp8 weight is there by rows and by columns",
            "transformer_engine pytorch/tensor Float8BlockwiseQTensor, MXFP8Tensor: _rowwise_data and _columnwise_data, a byte a weight each",
            pattern=r"_columnwise_data\b(?![^\n]{0,40}\bNone\b)",
        ),
        Mark("fp8-not-smaller-tried", 3.5, "tried with and without", "the peak of the same run with and without it", when=_tried),
        Mark(
            "fp8-not-smaller-compute",
            2.0,
            "fp8 compute",
            "TransformerEngine module/linear.py keeps the high-precision weight beside an fp8 workspace",
            when=_fp8,
        ),
        Mark(
            "fp8-not-smaller-told",
            3.5,
            "fp8 saves nothing",
            "TransformerEngine quickstart: weights stay in their own dtype, fp8 copies (and their transposes for the backward pass) come on top",
            when=lambda _, e: observed.fp8_saves_nothing(e),
        ),
        Mark("fp8-not-smaller-than-16", 2.5, "16 bit runs", "the figures of two runs", when=_runs_in_16_bit),
        Mark(
            "fp8-not-smaller-copies",
            2.5,
            "copies of the weights",
            "TransformerEngine quantized_tensor.py: rowwise and columnwise data, one byte each",
            when=_copies,
        ),
        Mark(
            "fp8-not-smaller-frame",
            3.5,
            "an fp8 workspace or transpose is being made",
            "transformer_engine get_weight_workspace (since 2.14: quantize_weight), fp8_transpose, update_usage(columnwise)",
            pattern=r"get_weight_workspace|module/base\.py:quantize_weight|fp8_transpose|fp8_cast_transpose|_transpose_cache|Float8Tensor|columnwise",
            on="frame",
        ),
        Mark(
            "fp8-not-smaller-code",
            1.0,
            "TransformerEngine is used",
            "transformer_engine.pytorch.fp8_autocast",
            pattern=r"fp8_autocast|transformer_engine|backend['\"]?\s*[:=]\s*['\"]?(TE|MSAMP)\b",
        ),
    ),
    fault=_fault,
    remedies=("drop-fp8", "gradient-checkpointing"),
    fires=(
        Example(
            "told in words",
            text="I turned on fp8_autocast and the run is faster, but memory usage with fp8 is even higher than in bf16. It goes OOM at 8k tokens.\n",
        ),
        Example(
            "TransformerEngine",
            job=job("meta-llama/Llama-3.2-3B", precision="{weights: fp32, compute: fp8}", batch="{micro_batch: 4, seq_len: 2048}"),
            text="with te.fp8_autocast(enabled=True):\n" + oom("3.03 GiB", allocated=75.0, free=2.9),
        ),
    ),
    quiet=(
        Example("fp8 that saves", text="fp8 and bf16 reach the same loss, and memory is 30% lower in fp8.\n" + oom("512.00 MiB", allocated=76.5)),
        Example("bf16", job=job(precision="{compute: bf16}"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
