"""Runs training steps of the built model under the recorder, as Hugging Face's Trainer runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from advisor.job import Job
from advisor.run import Run
from advisor.simulation import building, fusing, kernels, objectives, offloading, optimizers, placing, zero_scope
from advisor.simulation.autocast import CUDA, Lists, emulated_autocast
from advisor.simulation.frameworks import CLIPS, ON_ACCELERATE
from advisor.simulation.patching import patched
from advisor.simulation.ranks import dividing, group, hosting, pipelining, ring, sharding_names, zero, zero_names
from advisor.simulation.recorder import Recorder
from advisor.simulation.semantics import cuda_semantics
from advisor.simulation.standins import bitsandbytes, float8
from advisor.simulation.tensors import META

STEPS = 2  # optimizer states are made in the first; the second is the one that lasts
Say = Callable[[str], None]


def record(
    run: Run, say: Say = lambda _: None, *, device: str = META, attention: str = "auto", autocast: Lists | None = CUDA, watch: bool = True, rank: int = 0
) -> Recorder:
    """Two steps of the run, recorded. The first step's events are there too: states are born in it.

    Tests run the same step for real on ``device="cpu"``, with the attention kernel that a CPU has and its autocast lists (``None``:
    real autocast); ``watch=False`` leaves the run unobserved, for another witness. Several ranks are seen from ``rank``; on the CPU they are
    those of the process group that has been set up.

    Raises:
        CannotProbe: see :mod:`advisor.simulation.building` and :mod:`advisor.simulation.optimizers`.
    """
    say("building the model on the meta device")
    model = building.build(run, device)
    reference = objectives.reference_of(model, run.effective)
    if run.effective.precision.compute == "fp8":
        float8.convert(model, rowwise=run.effective.precision.fp8_recipe == "rowwise", compiled=bool(run.effective.activations.compile))
    patches = fusing.fuse(model, run.effective)
    if reference is not None:
        fusing.fuse(reference, run.effective)
    world = dividing.world_of(run)
    with contextlib.ExitStack() as entered:
        recorder = Recorder(kernels.TEMPORARIES, device=device)
        engined, streams = zero_scope.wanted(run.effective), None
        if (world > 1 or engined) and device == META:
            streams = entered.enter_context(group.opened(world, rank))
            recorder.stream = streams.number
        elif world > 1:
            entered.enter_context(patched(group.propagation()))
        if engined:
            entered.enter_context(zero.opened(streams, world, rank))
        if world > 1 and not engined:
            say(f"dividing it over {world} ranks")
            if device == META:
                entered.enter_context(patched(sharding_names.patches(recorder)))
            away = hosting.wanted(run.effective)
            if away:
                entered.enter_context(patched(hosting.transfers(recorder)))
            model = dividing.divided(model, dividing.written(run), device)
            if away:
                hosting.put(recorder, model)
        sm = run.card.sm if run.card else None
        packed = objectives.padding_free(run.effective)
        entered.enter_context(cuda_semantics(sm=sm, attention=attention, packed=packed))
        recorder.sequences = (run.effective.batch.micro_batch or 1) if packed else 0
        if autocast is not None:
            entered.enter_context(emulated_autocast(autocast, frozenset({device, "cuda"})))
        entered.enter_context(patched(patches))
        _steps(recorder, model, reference, run, say, watch=watch)
    return recorder


def _steps(recorder: Recorder, model: torch.nn.Module, reference: torch.nn.Module | None, run: Run, say: Say, *, watch: bool) -> None:
    optimizer = optimizers.build(model, zero_scope.with_kernel(run.effective))
    recorder.experts = max((b.experts.number for b in run.architecture.blocks if b.experts), default=1) if run.architecture else 1
    _label_weights(recorder, model)
    objectives.label_reference(recorder, reference)
    clip = run.effective.framework.name in CLIPS
    engine = None
    if zero_scope.wanted(run.effective):
        say("DeepSpeed's engine divides it")
        engine = zero.engine(recorder, model, optimizer, run, _micro_batches(run.effective))
    with recorder if watch else contextlib.nullcontext():
        placing.follow(recorder, model)
        for workspace in range(2):  # one for the forward thread, one for autograd's
            number = recorder.born(kernels.cublas_workspace(run.card.sm if run.card else None), "cublas workspace")
            recorder.storages[number].part, recorder.storages[number].name = "workspace", f"cuBLAS workspace {workspace + 1}"
        for step in range(STEPS):
            say(f"step {step + 1} of {STEPS}")
            recorder.step = step
            _one_step(recorder, model, reference, optimizer, run, engine, clip=clip)
        recorder.close()
    sharding_names.label(recorder)
    if engine is not None:
        zero_names.label(recorder)


def _micro_batches(job: Job) -> int:
    """Of a step's micro batches, as many as differ: the second meets gradients, a third adds nothing."""
    return min(job.batch.gradient_accumulation or 1, 2)


def _one_step(
    recorder: Recorder, model: torch.nn.Module, reference: torch.nn.Module | None, optimizer: torch.optim.Optimizer, run: Run, engine: Any, *, clip: bool
) -> None:
    job = run.effective
    forward = _forward(model if engine is None else engine, job, recorder.device)
    judged = None if reference is None else _forward(reference, job, recorder.device)  # accelerate prepares the reference too
    objectives.score(recorder, forward, job, model)
    micro_batches = _micro_batches(job)
    for number in range(micro_batches):
        if isinstance(model, pipelining.Pipeline):
            model.step(recorder)
            continue
        unsynced = _unsynced(model, job, last=number == micro_batches - 1)
        recorder.phase, recorder.moment = "forward", placing.FORWARD
        tokens = ring.given(objectives.inputs_of(recorder, job, model), job)
        with unsynced, ring.around(model, tokens, job):
            with offloading.to_host(recorder, job):
                loss, outputs = objectives.loss_of(forward, tokens, job, model, judged)
            kept = outputs if job.framework.keeps_outputs else None
            del outputs
            recorder.phase, recorder.moment, recorder.module = "backward", placing.LOSS_BACKWARD, ""
            _backward(loss, engine, last=number == micro_batches - 1)
            del loss, tokens, kept
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            recorder.label(parameter.grad, "gradients", placing.plain(name))
    recorder.phase, recorder.moment, recorder.module = "step", placing.STEP, ""
    if clip and engine is None and not job.optimizer.in_backward:
        optimizers.clip([p for p in model.parameters() if p.grad is not None], 1.0)
    (optimizer if engine is None else engine).step()
    names = {id(p): placing.plain(n) for n, p in model.named_parameters()}
    for owner, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                recorder.label(value, "optimizer", f"{names.get(id(owner), 'flat partition' if engine is not None else '?')} {key}")
    if engine is None:  # else the engine's step does it
        optimizer.zero_grad()


def _backward(loss: torch.Tensor, engine: Any, *, last: bool) -> None:
    """The backward pass; DeepSpeed counts micro batches by the calls of its step (accelerate utils/deepspeed.py ``DeepSpeedEngineWrapper.backward``)."""
    if engine is None:
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships no types here
        return
    engine.backward(loss)
    if not last:
        engine.step()


@contextlib.contextmanager
def _unsynced(model: Any, job: Job, *, last: bool) -> Iterator[None]:
    """Gradients stay whole until the last micro batch where the framework says so: accelerate's ``no_sync`` around all others."""
    whole = job.parallel.sync_each_microbatch is False or (job.parallel.sync_each_microbatch is None and job.framework.name in ON_ACCELERATE)
    if last or not whole:
        yield
    elif hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def _label_weights(recorder: Recorder, model: torch.nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        recorder.see(tensor, "parameter")
        recorder.label(tensor, "weights", placing.plain(name))
    for name, module in model.named_modules():
        for key, tensor in bitsandbytes.tensors_of(module).items():
            recorder.see(tensor, "quantisation state")
            recorder.label(tensor, "weights", f"{placing.plain(name)}.weight {key}")


def _forward(model: torch.nn.Module, job: Job, device: str) -> Callable[..., Any]:
    """The model's forward pass as accelerate prepares it under mixed precision: within autocast, 16-bit outputs then widened to fp32."""
    several = job.parallel.strategy not in (None, "none")  # accelerate's autocast lies around FSDP's own casts too
    if job.precision.mixed != "autocast" and not (job.precision.mixed == "fsdp" and several and job.framework.name in ON_ACCELERATE):
        return model

    def within(**inputs: Any) -> Any:
        with torch.autocast(device, dtype=dividing.dtype(job.precision.compute, "bf16")):
            return model(**inputs)

    if job.framework.name not in ON_ACCELERATE:
        return within
    from accelerate.utils import convert_outputs_to_fp32

    widened: Callable[..., Any] = convert_outputs_to_fp32(within)
    return widened
