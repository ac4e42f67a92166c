"""Dtype or kernel is not supported by the card and is emulated."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import fingerprint
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.rules.shares import guessed
from advisor.rules.situation import in_phase
from advisor.run import Run
from advisor.spoken import with_article


def _bf16(run: Run, evidence: Evidence) -> str | None:
    card = run.card
    if in_phase(evidence, "load", "save", "resume", "merge", "step"):  # nothing is computed in that dtype then
        return None
    if card is None or card.sm is None or card.sm >= 80 or run.job.precision.compute != "bf16" or guessed(run, "precision.compute"):
        return None
    return f"{with_article(card.name)} (compute capability {card.capability}) has no bf16 arithmetic: it is emulated through fp32"


def _fp8(run: Run, _evidence: Evidence) -> str | None:
    card = run.card
    if card is None or card.sm is None or card.sm >= 89 or run.job.precision.compute not in ("fp8", "mxfp8", "nvfp4"):
        return None
    return f"{with_article(card.name)} (compute capability {card.capability}) has no {run.job.precision.compute} arithmetic"


def _wide_request(run: Run, evidence: Evidence) -> str | None:
    """A card without bf16 is asked for hidden states or an MLP's output in fp32, where the job computes in 16 bit."""
    card, compute = run.card, run.job.precision.compute
    if card is None or card.sm is None or card.sm >= 80 or compute not in ("bf16", "fp16") or not in_phase(evidence, "forward", "backward", "eval"):
        return None
    return fingerprint.match(run, evidence, "hidden", "mlp", alone=True, dtype="fp32")


_SLOW = pattern(
    r"\bfast path is not available because|\bfalling back to its reference PyTorch implementation|"
    r"modeling_\w+\.py:(?:slow_forward|torch_forward|torch_chunk_\w+|torch_recurrent_\w+)\b",
    re.IGNORECASE,
)


def _form(_run: Run, evidence: Evidence) -> Form | None:
    """A package is missing, no card is too old: installing it is the cure."""
    shown = (*(line.text for line in evidence.lines), *(f"{f.file}:{f.function}" for f in evidence.frames))
    if not any(_SLOW.search(text) for text in shown):
        return None
    return Form("A sequence layer runs without its kernel: the states of every position are formed", ("fused-kernels", "upgrade", "gradient-checkpointing"))


RULE = Rule(
    id="kernel-unsupported",
    tier="fallback",
    title="The card does not support the dtype or kernel that was asked for, and a larger one is used",
    cleared="The card supports the dtype and the kernels that were asked for.",
    prior=-1.2,
    marks=(
        Mark("kernel-unsupported-bf16", 3.0, "no bf16", "CUDA programming guide: bf16 from compute capability 8.0", when=_bf16),
        Mark(
            "kernel-unsupported-scores",
            2.5,
            "the scores are made whole on a card that has no fused kernel for bf16",
            "ATen sdp_utils.cpp, flash-attn, xformers fmha: bf16 from compute capability 8.0",
            pattern=r"scaled_dot_product_attention|eager_attention|get_attention_scores|attn_weights|softmax|baddbmm|matmul\(\s*q",
            on="frame",
            when=_bf16,
        ),
        Mark("kernel-unsupported-fp8", 2.5, "no fp8", "TransformerEngine quantization.py check_fp8_support: 8.9", when=_fp8),
        Mark(
            "kernel-unsupported-wider",
            3.5,
            "a library says that it computes in fp32, because the card has only fp16 and the model overflows in it",
            "unsloth models/loader.py FORCE_FLOAT32: 'Using float16 precision for ... won't work! Using float32.'; diffusers and WebUI upcast alike",
            pattern=(
                r"\b(?:float16|fp16|half|bfloat16|bf16)\b[^.\n]{0,40}(?:won't work|does(?: not|n't) work|unsupported|not supported|overflows?|unstable)"
                r"[^\n]{0,30}\b(?:using|use|switch\w* to|fall\w* back to)\b[^\n]{0,12}(?:float32|fp32)"
            ),
            on="line",
        ),
        Mark(
            "kernel-unsupported-slow",
            4.0,
            "a sequence layer runs without its kernel",
            "transformers models/*/modeling_*.py: 'The fast path is not available because one of ... is None. Falling back to the sequential implementation', "
            "slow_forward and torch_forward, torch_chunk_gated_delta_rule: the states of every position are formed",
            pattern=(
                r"\b[Ff]ast path is not available because|\bfalling back to its reference PyTorch implementation|"
                r"modeling_\w+\.py:(?:slow_forward|torch_forward|torch_chunk_\w+|torch_recurrent_\w+)\b"
            ),
        ),
        Mark("kernel-unsupported-request", 1.5, "fp32 activations", "CUDA programming guide: bf16 from compute capability 8.0", when=_wide_request),
        Mark(
            "kernel-unsupported-says",
            4.5,
            "a library says that the card is too old for a kernel",
            "flash-attn: 'FlashAttention only supports Ampere GPUs or newer'; torch/cuda/__init__.py _check_capability; xformers ops/fmha/common.py; "
            "bitsandbytes and TransformerEngine capability checks",
            pattern=(
                r"only supports? (Ampere|Hopper|compute capability)|compute capability .{0,40}(or (higher|newer)|required|not supported)|"
                r"Your GPU does not support|not supported on (this|your) (GPU|device)|"
                r"only supported on GPUs with compute capability|no kernel image is available|"
                r"CUDA capability sm_\d+ is not compatible with the current PyTorch|requires device with capability [><=]+ ?\(|"
                r"\b(?:bf16|bfloat16|fp8)\b.{0,40}\bnot (?:natively |fully )?supported (?:on|by) (?:this|your|the) (?:device|gpu|card|hardware)|"
                r"\b(?:device|gpu|card)\b.{0,30}\b(?:does not|doesn't|do not|does NOT) (?:natively )?support (?:\w+ ){0,3}(?:bf16|bfloat16|fp8|flash)"
            ),
        ),
    ),
    form=_form,
    remedies=("upgrade", "load-in-16-bit", "restore-flash-attention"),
    fires=(
        Example(
            "bf16 on a T4",
            job=job("Qwen/Qwen2.5-0.5B", precision="{compute: bf16}", hardware="{gpu: t4}"),
            text="ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.\n" + oom("64.00 MiB", allocated=14.0, capacity=14.56),
        ),
    ),
    quiet=(Example("bf16 on an A100", job=job(precision="{compute: bf16}", hardware="{gpu: a100-80gb}"), text=oom("512.00 MiB", allocated=76.5)),),
)
