"""Accumulation without synchronisation keeps whole gradients on each rank."""

from __future__ import annotations

import re
from itertools import pairwise

from advisor.deviation import ineffective
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import compared, remainder
from advisor.rules.growth import rise_within_step
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import DIVIDES_GRADIENTS, in_phase, near
from advisor.run import Run
from advisor.units import GIB, show

RISES = 1.25  # below it: gradients that outlive a forward pass, and the allocator's cache
ON_ACCELERATE = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "accelerate"})


def _applies(run: Run, _evidence: Evidence) -> str | None:
    strategy = run.job.parallel.strategy
    if strategy is not None and strategy not in DIVIDES_GRADIENTS:
        return f"the strategy {strategy} keeps whole gradients anyway"
    return None


def _rise(run: Run, evidence: Evidence) -> str | None:
    """Between two figures of one step the allocated bytes rise by all parameters' gradients, where a share was due."""
    shape, rise = run.architecture, rise_within_step(evidence)
    if shape is None or rise is None or run.job.parallel.strategy not in DIVIDES_GRADIENTS:
        return None
    for width in (4, 2):
        if near(rise[0], shape.parameters * width, 0.06):
            return f"{rise[1]}: a rise of {show(rise[0])}, the whole model's gradients at {width} bytes, where each rank should keep a share"
    return None


_STEP = pattern(r"micro[ -]?batch|backward|accumulat|\bupdate\b", re.IGNORECASE)
_SIZE = pattern(r"(?<![\w.])(\d{1,4}(?:\.\d{1,3})?) ?(?:GiB|GB)\b")


def _row(run: Run, evidence: Evidence) -> str | None:
    """Two figures of one row of a table, before and after a micro batch, apart by the whole model's gradients in fp32."""
    shape = run.architecture
    if shape is None or run.job.parallel.strategy not in DIVIDES_GRADIENTS or not any(_STEP.search(line.text) for line in evidence.lines):
        return None
    for line in evidence.lines:
        sizes = [round(float(size) * GIB) for size in _SIZE.findall(line.text)] if len(line.text) <= 200 else []
        for before, after in pairwise(sizes):
            if near(after - before, shape.parameters * 4, 0.03):
                return f"{line.where}: a rise of {show(after - before)}, the whole model's gradients at 4 bytes, where each rank should keep a share"
    return None


def _accumulates(run: Run, evidence: Evidence) -> str | None:
    steps, sync = run.job.batch.gradient_accumulation or 1, run.job.parallel.sync_each_microbatch
    divided = run.job.parallel.strategy in ("fsdp1", "fsdp2")
    if steps == 1 and divided and sync is False and run.facts["parallel.sync_each_microbatch"].kind in ("stated", "read"):
        return "gradients are to be divided after the last micro batch only" if in_phase(evidence, "backward", "step") else None
    if steps > 1 and divided and sync is False and in_phase(evidence, "backward", "step"):
        return f"gradients are accumulated over {steps} micro batches without being divided in between"
    return None


def _accumulates_by_default(run: Run, evidence: Evidence) -> str | None:
    """accelerate's accumulate runs all but the last micro batch under no_sync unless sync_each_batch is set."""
    steps, job = run.job.batch.gradient_accumulation or 1, run.job
    if steps < 2 or job.parallel.strategy not in ("fsdp1", "fsdp2") or job.parallel.sync_each_microbatch is not None:
        return None
    if job.framework.name not in ON_ACCELERATE or job.method.kind != "full" or not in_phase(evidence, "backward", "step"):
        return None
    return f"{steps} micro batches are accumulated, and nothing asks for a division after each"


def _tried(_run: Run, evidence: Evidence) -> str | None:
    """Divided gradients are as large after four micro batches as after one: what rises with their number is not divided in between."""
    figures = compared.by_value(evidence, "(?:gradient_accumulation(?:_steps)?|grad_accum(?:ulation)?(?:_steps)?|accumulate_grad_batches)")
    if len(figures) < 2 or figures[0][0] != 1 or figures[-1][1].value < RISES * figures[0][1].value:
        return None
    (_, one), (steps, many) = figures[0], figures[-1]
    return f"{one.says} with one micro batch a step, {many.says} with {steps} ({many.where}): gradients wait undivided"


_STEPS = r"(?:gradient[_ ]accumulation(?:[_ ]steps)?|grad_accum(?:ulation)?(?:_steps)?|accumulate_grad_batches)"
_VALUE = pattern(rf"\b{_STEPS}\b(?: (?:is|of|to|at|set to))?[ =:]{{1,3}}(\d{{1,4}})\b", re.IGNORECASE)
_LEFT_OUT = pattern(rf"\b(?:without|no|w/o)\b (?:any )?{_STEPS}\b", re.IGNORECASE)
_WENT = pattern(r"\b(?:fits?|fine|works?|worked|runs?|ran|trains?|uses?|used|peaks?|takes?)\b", re.IGNORECASE)
_WENT_NOT = pattern(r"\b(?:OOMs?|out of memory|runs? out|ran out)\b", re.IGNORECASE)
_SENTENCE = pattern(r"(?<=[.;!?])\s+|,? but ")


def _said(run: Run, evidence: Evidence) -> str | None:
    """One micro batch a step went through and several did not: divided gradients are of one size whatever the number is."""
    if run.job.parallel.strategy not in DIVIDES_GRADIENTS:
        return None
    one = many = ""
    for line in evidence.lines:
        for sentence in _SENTENCE.split(line.text) if len(line.text) <= 1500 else ():
            failed, value = _WENT_NOT.search(sentence) is not None, _VALUE.search(sentence)
            steps = int(value[1]) if value else 1 if _LEFT_OUT.search(sentence) else 0
            if sentence.rstrip().endswith("?") or not steps:
                continue
            if steps == 1 and not failed and _WENT.search(sentence):
                one = one or line.where
            elif steps > 1 and failed:
                many = many or line.where
    return f"one micro batch a step went through ({one}), and several ran out of memory ({many}): gradients wait undivided" if one and many else None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    if run.job.parallel.strategy not in ("fsdp1", "fsdp2", "zero2") or run.job.parallel.sync_each_microbatch is False:
        return None
    return run.deviating(ineffective("parallel.sync_each_microbatch", cause="gradients-unsharded"))


RULE = Rule(
    id="gradients-unsharded",
    tier="copies",
    title="Whole gradients stay on each rank while micro batches accumulate",
    cleared="Gradients are divided after each micro batch.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark("gradients-unsharded-rise", 4.0, "a whole gradient", "FSDP no_sync keeps unsharded gradients until the last micro batch", when=_rise),
        Mark(
            "gradients-unsharded-row",
            4.0,
            "a whole gradient",
            "FSDP no_sync keeps unsharded gradients until the last micro batch",
            when=lambda run, e: None if _rise(run, e) else _row(run, e),
        ),
        Mark(
            "gradients-unsharded-remainder",
            1.0,
            "whole gradients more",
            "the estimate's ledger against the printed counters",
            when=lambda run, e: remainder.matching(run, e, "gradients-unsharded") if in_phase(e, "backward", "step") else None,
        ),
        Mark(
            "gradients-unsharded-stated",
            2.0,
            "no division in between",
            "accelerate GradientAccumulationPlugin.sync_each_batch False -> no_sync",
            when=_accumulates,
        ),
        Mark(
            "gradients-unsharded-default",
            1.5,
            "accumulated without division by default",
            "transformers Trainer._inner_training_loop: accelerator.no_sync for all but the last micro batch; accelerate PR 2531",
            when=_accumulates_by_default,
        ),
        Mark(
            "gradients-unsharded-tried",
            3.5,
            "more with accumulation than without",
            "FSDP no_sync, FSDP2 set_requires_gradient_sync(False): the unsharded gradient is kept until the last micro batch; divided, it is of one size",
            pattern=r"FSDP2?Strategy|fully_shard|FullyShardedDataParallel|FULL_SHARD|\bfsdp2?\b|HYBRID_SHARD",
            when=_tried,
        ),
        Mark(
            "gradients-unsharded-said",
            3.5,
            "it fails with accumulation only",
            "FSDP no_sync, FSDP2 set_requires_gradient_sync(False): the unsharded gradient is kept until the last micro batch; divided, it is of one size",
            when=lambda run, e: None if _tried(run, e) else _said(run, e),
        ),
        Mark(
            "gradients-unsharded-frame",
            2.0,
            "the backward pass runs without synchronisation",
            "torch FSDP no_sync; FSDP2 set_requires_gradient_sync(False), set_reshard_after_backward(False)",
            pattern=r"no_sync|set_requires_gradient_sync|set_is_last_backward|unsharded_accumulated_grad",
        ),
    ),
    fault=_fault,
    remedies=("sync-each-microbatch", "smaller-micro-batch"),
    fires=(
        Example(
            "FSDP without synchronisation",
            job=job(parallel="{strategy: fsdp2, shard: 8, sync_each_microbatch: false}", batch="{micro_batch: 1, seq_len: 2048, gradient_accumulation: 8}"),
            text=trace(
                "torch/_tensor.py|backward|torch.autograd.backward(", "torch/distributed/fsdp/_fully_shard/_fsdp_param.py|unsharded_accumulated_grad_data"
            )
            + oom("1.96 GiB", allocated=77.0),
        ),
        Example(
            "more with each accumulated batch",
            job=job(parallel="{strategy: fsdp2, shard: 8}", batch="{micro_batch: 1, seq_len: 2048, gradient_accumulation: 8}"),
            text="fully_shard, accumulate_grad_batches: 1, peak memory 31.2 GiB\nfully_shard, accumulate_grad_batches: 8, peak memory 58.9 GiB\n",
        ),
        Example(
            "the Trainer's own accumulation under FSDP",
            job=job(
                "mistralai/Mistral-7B-v0.1",
                method="{kind: full}",
                parallel="{strategy: fsdp1, shard: 8}",
                batch="{micro_batch: 1, seq_len: 2048, gradient_accumulation: 4}",
                activations="{checkpointing: full}",
                framework="{name: hf-trainer}",
            ),
            text=trace("accelerate/accelerator.py|backward|loss.backward(**kwargs)", "torch/_tensor.py|backward|torch.autograd.backward(")
            + oom("430.00 MiB", allocated=37.1, capacity=39.39),
        ),
    ),
    quiet=(
        Example(
            "a little more with accumulation",
            job=job(parallel="{strategy: fsdp2, shard: 8}", batch="{micro_batch: 8, seq_len: 4096, gradient_accumulation: 4}"),
            text="fsdp, grad_accum=1 memory 40.1 GiB\nfsdp, grad_accum=4 memory 42.0 GiB\n",
        ),
        Example(
            "one micro batch a step",
            job=job(parallel="{strategy: fsdp2, shard: 8}", batch="{micro_batch: 8, seq_len: 4096, gradient_accumulation: 1}"),
            text=trace("torch/nn/functional.py|cross_entropy") + oom("3.91 GiB", allocated=75.0),
        ),
    ),
)
