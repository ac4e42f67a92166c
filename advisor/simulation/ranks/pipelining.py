"""Pipelines: the stages of one rank under torch's own schedule, which holds the micro batches in flight and the buffers that it receives into.

Read in torch 2.13, distributed/pipelining: stage.py ``PipelineStage`` (a buffer for every micro batch's activations, and for every gradient, made
once), schedules.py ``Schedule1F1B`` (stage i of P runs ``P - i`` micro batches ahead), ``ScheduleInterleaved1F1B``; ``step`` hands the last
stage's outputs back, so it keeps them and joins them, unless it is told not to (``return_outputs``, torch 2.10).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from advisor.job import Job
from advisor.run import Run
from advisor.simulation import placing
from advisor.simulation.quantising import DTYPES
from advisor.simulation.ranks import cutting
from advisor.simulation.recorder import Recorder
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import torchtitan

FRAMEWORKS = frozenset({None, "custom", "torchtitan"})  # accelerate, and what is on it, trains through no pipeline
STRATEGIES = frozenset({"none", "fsdp2"})


def degree(job: Job) -> int:
    """Ranks that the layers are dealt out over."""
    return job.parallel.pipeline or 1


def why_not(job: Job) -> str | None:
    """What a pipeline is not run with, in words."""
    parallel = job.parallel
    if degree(job) == 1:
        return None
    if job.framework.name not in FRAMEWORKS:
        return f"{job.framework.name}'s own pipeline parallelism"
    if (parallel.strategy or "none") not in STRATEGIES or ((parallel.strategy or "none") == "none" and (parallel.replicate or 1) > 1):
        return f"{parallel.strategy} within the stages of a pipeline (pipeline parallelism)"
    if (parallel.tensor or 1) > 1:
        return "divided layers (tensor parallelism) within pipeline parallelism"
    if job.method.kind not in (None, "full"):
        return f"{job.method.kind} in a pipeline's stages (pipeline parallelism)"
    if job.objective not in (None, "pretrain", "sft"):
        return f"the {job.objective} objective through pipeline parallelism"
    if job.precision.mixed == "autocast":
        return "autocast around pipeline parallelism"
    if job.activations.loss not in ("full-fp32", "full", None):
        return f"a {job.activations.loss} loss at the end of pipeline parallelism"
    if any(getattr(job.offload, name) not in (None, "none") for name in ("parameters", "optimizer", "gradients", "activations")):
        return "offloading within pipeline parallelism"
    if job.optimizer.in_backward:
        return "an optimizer within the backward passes of pipeline parallelism"
    if (parallel.microbatches or 1) < degree(job):
        return f"fewer micro batches ({parallel.microbatches or 1}) than stages ({degree(job)}) through pipeline parallelism, which torch's schedules refuse"
    return None


def looked_at(run: Run) -> tuple[int, ...]:
    """The stages' ranks that the probe runs: the one that ``parallel.pipeline_rank`` names, else those that may need most.

    Of stages in the middle, a later one with no more layers than an earlier one holds fewer micro batches of no more layers.

    Raises:
        CannotProbe: see :func:`advisor.simulation.ranks.cutting.layout`.
    """
    job, size = run.effective, degree(run.effective)
    meant = job.parallel.pipeline_rank
    if size == 1 or meant == "first":
        return (0,)
    if meant == "last" or isinstance(meant, int):
        return (size - 1 if meant == "last" else min(int(meant), size - 1),)
    layers = cutting.layout(job, run.architecture.layers if run.architecture else 0)
    held = [sum(layers[rank::size]) for rank in range(size)]
    alike = run.architecture is not None and len(run.architecture.blocks) == 1
    middle = [rank for rank in range(1, size - 1) if not alike or all(held[rank] > held[before] for before in range(1, rank))]
    return (0, *middle, size - 1)


class Pipeline(nn.Module):
    """A rank's stages; :meth:`step` runs them as the schedule says."""

    def __init__(self, parts: Sequence[tuple[int, nn.Module]], job: Job, group: Any) -> None:
        super().__init__()
        self.numbers = [number for number, _ in parts]
        for number, part in parts:
            self.add_module("module" if len(parts) == 1 else f"stage{number}", part)
        self._job, self._group = job, group
        self._schedule: Any = None

    def parts(self) -> Iterator[tuple[int, Any]]:
        """Each stage's number and module."""
        yield from zip(self.numbers, self.children(), strict=True)

    def step(self, recorder: Recorder) -> None:
        """Every micro batch forward and backward through this rank's stages."""
        if self._schedule is None:
            self._schedule = self._made(recorder)
        job, last = self._job, _count(self._job) - 1
        recorder.phase, recorder.moment = "forward", placing.FORWARD
        rows = (job.batch.micro_batch or 1) * (job.parallel.microbatches or 1)
        tokens = torch.zeros(rows, job.batch.seq_len or 1, dtype=torch.long, device=recorder.device)
        arguments = (tokens,) if 0 in self.numbers else ()
        target = {"target": tokens} if last in self.numbers else {}
        self._schedule.step(*arguments, **target, **_not_returned(job, self._schedule))

    def _made(self, recorder: Recorder) -> Any:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

        job, count, device = self._job, _count(self._job), torch.device(recorder.device)
        made: list[Any] = []
        for number, part in self.parts():
            with Recorder.paused():
                given, out = self._between(part, number, device)
            stage = PipelineStage(part, number, count, device, input_args=(given,), output_args=(out,), group=self._group)
            _follow(recorder, stage, out)
            made.append(stage)
        micro_batches, loss = job.parallel.microbatches or 1, self._loss()
        if len(made) == 1:
            return Schedule1F1B(made[0], micro_batches, loss_fn=loss)
        return ScheduleInterleaved1F1B(made, micro_batches, loss_fn=loss)

    def _between(self, part: Any, number: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """What a stage is given and gives, as tensors of that shape: ``[micro_batch, seq, hidden]``, or token ids and logits at the ends."""
        job = self._job
        rows, length = job.batch.micro_batch or 1, job.batch.seq_len or 1
        dtype = DTYPES.get(job.precision.compute or "bf16", torch.bfloat16) if job.precision.mixed == "fsdp" else DTYPES[job.precision.weights or "fp32"]
        layer = next(part.get_decoder().layers.children(), None)
        hidden = next(p.shape[-1] for p in (layer or part).parameters() if p.dim() == 1)  # of its norms
        between = torch.empty(rows, length, hidden, dtype=dtype, device=device, requires_grad=True)
        tokens = torch.zeros(rows, length, dtype=torch.long, device=device)
        logits = between if number < _count(job) - 1 else torch.empty(rows, length, _vocab(part), dtype=dtype, device=device, requires_grad=True)
        return (tokens if number == 0 else between), logits

    def _loss(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """The model's own loss, of the micro batch's logits ``[micro_batch, seq, vocab]``; torch's schedules are given one on every rank."""
        job = self._job
        part = dict(self.parts()).get(_count(job) - 1)
        if job.model.source == "torchtitan":
            return lambda logits, labels: torchtitan.loss(lambda _: logits, labels, job)
        whole = getattr(part, "loss_function", None) if part is not None else _unasked
        if whole is None:
            raise CannotProbe(f"{type(part).__name__} of this transformers has no loss apart from its forward pass: the estimate stands in")
        return lambda logits, labels: whole(logits=logits, labels=labels, vocab_size=logits.shape[-1])


def _unasked(**_: Any) -> torch.Tensor:
    raise AssertionError("a stage before the last has no loss")


def _count(job: Job) -> int:
    return degree(job) * (job.parallel.virtual_stages or 1)


def _vocab(part: Any) -> int:
    return int(part.get_output_embeddings().weight.shape[0])


def _not_returned(job: Job, schedule: Any) -> dict[str, bool]:
    """torchtitan asks for no outputs where torch lets it."""
    known = job.framework.name == "torchtitan" and "return_outputs" in inspect.signature(schedule.step).parameters
    return {"return_outputs": False} if known else {}


def _follow(recorder: Recorder, stage: Any, out: torch.Tensor) -> None:
    """Tell the recorder which way a micro batch goes, and hold a stage's outputs against what the next one was told to expect."""
    forward, backward, reduce = stage.forward_one_chunk, stage.backward_one_chunk, stage.perform_reduce_grad

    def forward_one_chunk(*args: Any, **kwargs: Any) -> Any:
        recorder.phase, recorder.moment = "forward", placing.FORWARD
        given = forward(*args, **kwargs)
        if (given.shape, given.dtype) != (out.shape, out.dtype):
            raise CannotProbe(f"a stage gives {list(given.shape)} in {given.dtype} where {list(out.shape)} in {out.dtype} was expected")
        return given

    def backward_one_chunk(*args: Any, **kwargs: Any) -> Any:
        recorder.phase, recorder.moment, recorder.module = "backward", placing.LOSS_BACKWARD, ""
        return backward(*args, **kwargs)

    def perform_reduce_grad(*args: Any) -> Any:
        recorder.phase, recorder.moment, recorder.module = "backward", placing.ROOT, ""
        return reduce(*args)

    stage.forward_one_chunk, stage.backward_one_chunk, stage.perform_reduce_grad = forward_one_chunk, backward_one_chunk, perform_reduce_grad
