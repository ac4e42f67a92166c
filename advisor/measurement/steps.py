"""Builds a job with random weights, runs warm and measured steps on this device, and gives the ledger of what was allocated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from advisor.job import Job
from advisor.ledger import Holding, Ledger, Moment
from advisor.measurement import real, software, trainers
from advisor.measurement.counting import CpuCounter, CudaCounter
from advisor.measurement.parts import Made, Observed
from advisor.measurement.ranks import Divide
from advisor.measurement.watching import buckets, owned
from advisor.run import Run
from advisor.simulation.quantising import DTYPES

WARM, MEASURED = 2, 3
CLIPPING = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift"})  # max_grad_norm 1.0 is their default
TOLD = (
    "gradients",
    "communication",
    "reference",
    "logits",
    "attention",
    "activations",
)  # what a watched step tells apart; model and optimizer are asked what they own
REST = "activations, logits, gradients not yet whole, temporaries"
Say = Callable[[str], None]


def measure(
    run: Run, device: str, divide: Divide | None = None, say: Say = lambda _: None, counted: Callable[[Ledger], None] = lambda _: None
) -> Ledger:  # fmt: skip
    """The measured ledger of this process. ``divide`` divides the model over several ranks.

    ``counted`` gets the ledger of the measured steps before one step more is watched, to tell its parts.

    Raises:
        CannotProbe: a model or optimizer that can not be built here.
        torch.OutOfMemoryError: it did not fit.
        WatchedStepRanOutError: it fitted, and of several ranks this one ran out in the step that was watched.
    """
    job = run.effective
    say("building the model")
    alone = run if divide is None else run.but(parallel={"strategy": "none", "shard": 1, "replicate": 1, "tensor": 1, "pipeline": 1})
    loop, note = trainers.loop_of(job, int(os.environ.get("WORLD_SIZE", "1")))
    model, notes = real.shape(alone, device, own_loss=loop in ("sft-trainer", "dpo-trainer"))
    counter = CudaCounter() if device.startswith("cuda") else CpuCounter()
    if loop is None and divide is not None:
        model = divide(model, lambda whole: real.fill(whole, device))
    else:  # a framework's own loop divides it itself
        real.fill(model, device)
    optimizer = real.optimizer(model, job)
    notes = notes if note is None else (note, *notes)
    if loop is None:
        held = _plain_loop(model, optimizer, job, device, counter, say)
        counted(_ledger(counter, held, device, notes))
        made = _observed(model, optimizer, job, device, say)
    else:
        held, made = trainers.run(
            loop, model, optimizer, job, device, counter, warm=WARM, steps=MEASURED, held=lambda whole: _held(whole, optimizer), say=say,
            counted=lambda seen: counted(_ledger(counter, seen, device, notes)),
        )  # fmt: skip
    return _ledger(counter, held, device, notes, made)


def _plain_loop(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, job: Job, device: str, counter: CpuCounter | CudaCounter, say: Say
) -> trainers.Held:  # fmt: skip
    held: trainers.Held = {}
    for number in range(WARM + MEASURED):
        say(f"step {number + 1} of {WARM + MEASURED}")
        if number < WARM:
            _step(model, optimizer, job, device, None, {})
            continue
        base = sum(size for size, _ in _held(model, optimizer).values())
        with counter.step(base):
            _step(model, optimizer, job, device, counter, held)
    return held


def _observed(model: torch.nn.Module, optimizer: torch.optim.Optimizer, job: Job, device: str, say: Say) -> Made:
    say("one step more, to tell its parts")
    with Observed(model, optimizer) as seen:
        _step(model, optimizer, job, device, None, {})
    return seen.made


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, job: Job, device: str, counter: CpuCounter | CudaCounter | None, held: dict[str, Any]
) -> None:
    vocab = int(getattr(getattr(model, "config", None), "vocab_size", 0) or getattr(getattr(getattr(model, "module", None), "config", None), "vocab_size", 2))
    for _ in range(job.batch.gradient_accumulation or 1):
        with _phase(counter, "forward"):
            tokens = torch.randint(0, vocab, (job.batch.micro_batch or 1, job.batch.seq_len or 1), device=device)
            with _autocast(job, device):
                outputs = model(input_ids=tokens, labels=tokens)
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
            kept = outputs if job.framework.keeps_outputs else None
            del outputs
            held["forward"] = _held(model, optimizer)
        with _phase(counter, "backward"):
            loss.backward()
            del loss, tokens, kept
            held["backward"] = {part: found for part, found in _held(model, optimizer).items() if part != "gradients"}  # they are made while it runs
    with _phase(counter, "step"):
        if job.framework.name in CLIPPING:
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        optimizer.step()
        held["step"] = _held(model, optimizer)
    optimizer.zero_grad()


def _phase(counter: CpuCounter | CudaCounter | None, name: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext() if counter is None else counter.phase(name)


def _autocast(job: Job, device: str) -> AbstractContextManager[Any]:
    if job.precision.mixed != "autocast":
        return contextlib.nullcontext()
    return torch.autocast(device.partition(":")[0], dtype=DTYPES.get(job.precision.compute or "bf16"))


def _held(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[int, str]]:
    """Bytes and dtype by part of what model and optimizer own now, and DDP's buckets around them."""
    own = owned.by_storage(model, optimizer)
    sizes = owned.by_part([*own.values(), *buckets.of(buckets.around(model), own.values())])
    return {part: (sum(found.values()), max(found, key=lambda name: found[name])) for part, found in sizes.items()}


def _ledger(
    counter: CpuCounter | CudaCounter, held: dict[str, dict[str, tuple[int, str]]], device: str, notes: tuple[str, ...], made: Made | None = None
) -> Ledger:
    """One moment a phase: what is owned then, what operators had ``made``, and the rest as unattributed, adding up to what the allocator counted."""
    holdings: list[Holding] = []
    how = "torch.cuda.max_memory_allocated" if device.startswith("cuda") else "torch.profiler memory events"
    for phase, total in counter.peaks.items():
        moment = frozenset({f"measured.{phase}"})
        rest = total
        for part, (size, dtype) in held.get(phase, {}).items():
            rest -= size
            holdings.append(Holding(part, f"{part} held", size, moment, "sum of the tensors owned by model and optimizer", {}, "their storages' sizes", dtype))
        seen = (made or {}).get(phase, {})
        for part in TOLD:  # a batch that was there before its step began is among the activations, and on a CPU is not counted: so they come last
            size = min(seen.get(part, 0), rest)
            if size > 0 and part not in held.get(phase, {}):
                rest -= size
                says, how_told = f"{part} at the largest moment of a step that was watched", "sum of the storages that operators made and that lived then"
                holdings.append(Holding(part, says, size, moment, how_told, {}, "torch dispatch: births and deaths of storages"))
        if rest > 0:
            says = "all else that was allocated: " + ("buffers of libraries, temporaries of kernels and of the optimizer" if made else REST)
            values = {"counted": total, "owned": total - rest}
            holdings.append(Holding("unattributed", says, rest, moment, "counted - owned", values, f"counted by {how}"))
    reserved = counter.reserved()
    moments = tuple(Moment(f"measured.{phase}", phase) for phase in counter.peaks)
    if reserved is not None and counter.peaks:
        cache = max(0, reserved - max(counter.peaks.values()))
        everywhere = frozenset(m.id for m in moments)
        holdings.append(
            Holding("allocator", "the allocator's cache", cache, everywhere, "reserved - max_allocated", {"reserved": reserved}, "torch.cuda.memory_reserved")
        )
    if not device.startswith("cuda"):
        notes += ("measured on a CPU as the stand-in: its kernels, dtypes of accumulation and allocator are not a GPU's",)
    return Ledger("measured", tuple(holdings), moments, software=software.loaded(device), notes=notes)
