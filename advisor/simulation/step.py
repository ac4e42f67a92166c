"""Runs training steps of the built model under the recorder, as Hugging Face's Trainer runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from advisor.job import Job
from advisor.run import Run
from advisor.simulation import building, fusing, kernels, optimizers, quantising
from advisor.simulation.autocast import CUDA, Lists, emulated_autocast
from advisor.simulation.patching import patched
from advisor.simulation.recorder import Recorder
from advisor.simulation.semantics import cuda_semantics
from advisor.simulation.standins import bitsandbytes

STEPS = 2  # optimizer states are made in the first; the second is the one that lasts
TRAINERS = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "unsloth"})  # max_grad_norm 1.0 is their default
ON_ACCELERATE = TRAINERS | {"accelerate"}
Say = Callable[[str], None]


def record(
    run: Run, say: Say = lambda _: None, *, device: str = "meta", attention: str = "auto", autocast: Lists | None = CUDA, watch: bool = True
) -> Recorder:
    """Two steps of the run, recorded. The first step's events are there too: states are born in it.

    Tests run the same step for real on ``device="cpu"``, with the attention kernel that a CPU has and its autocast lists (``None``:
    real autocast); ``watch=False`` leaves the run unobserved, for another witness.

    Raises:
        CannotProbe: see :mod:`advisor.simulation.building` and :mod:`advisor.simulation.optimizers`.
    """
    job = run.effective
    say("building the model on the meta device")
    model = building.build(run, device)
    patches = fusing.fuse(model, job)
    optimizer = optimizers.build(model, job)
    sm = run.card.sm if run.card else None
    recorder = Recorder(kernels.TEMPORARIES, device=device)
    recorder.experts = max((b.experts.number for b in run.architecture.blocks if b.experts), default=1) if run.architecture else 1
    _label_weights(recorder, model)
    clip = job.framework.name in TRAINERS
    casting = emulated_autocast(autocast, frozenset({device, "cuda"})) if autocast is not None else contextlib.nullcontext()
    with cuda_semantics(sm=sm, attention=attention), casting, patched(patches), recorder if watch else contextlib.nullcontext():
        _modules(recorder, model)
        for workspace in range(2):  # one for the forward thread, one for autograd's
            number = recorder.born(kernels.cublas_workspace(sm), "cublas workspace")
            recorder.storages[number].part, recorder.storages[number].name = "workspace", f"cuBLAS workspace {workspace + 1}"
        for step in range(STEPS):
            say(f"step {step + 1} of {STEPS}")
            recorder.step = step
            _one_step(recorder, model, optimizer, run, clip=clip)
        recorder.close()
    return recorder


def _one_step(recorder: Recorder, model: torch.nn.Module, optimizer: torch.optim.Optimizer, run: Run, *, clip: bool) -> None:
    job = run.effective
    forward = _forward(model, job, recorder.device)
    for _ in range(min(job.batch.gradient_accumulation or 1, 2)):  # the second micro batch meets gradients; a third adds nothing
        recorder.phase = "forward"
        tokens = torch.zeros(job.batch.micro_batch or 1, job.batch.seq_len or 1, dtype=torch.long, device=recorder.device)
        recorder.see(tokens, "input")
        outputs = forward(input_ids=tokens, labels=tokens)
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
        kept = outputs if job.framework.keeps_outputs else None
        del outputs
        recorder.phase, recorder.module = "backward", ""
        loss.backward()
        del loss, tokens, kept
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            recorder.label(parameter.grad, "gradients", name)
    recorder.phase, recorder.module = "step", ""
    if clip and not job.optimizer.in_backward:
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
    optimizer.step()
    names = {id(p): n for n, p in model.named_parameters()}
    for owner, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                recorder.label(value, "optimizer", f"{names.get(id(owner), '?')} {key}")
    optimizer.zero_grad()


def _label_weights(recorder: Recorder, model: torch.nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        recorder.see(tensor, "parameter")
        recorder.label(tensor, "weights", name)
    for name, parameter in model.named_parameters():
        for key, tensor in bitsandbytes.tensors_of(parameter).items():
            recorder.see(tensor, "quantisation state")
            recorder.label(tensor, "weights", f"{name} {key}")


def _forward(model: torch.nn.Module, job: Job, device: str) -> Callable[..., Any]:
    """The model's forward pass as accelerate prepares it under mixed precision: within autocast, 16-bit outputs then widened to fp32."""
    if job.precision.mixed != "autocast":
        return model

    def within(**inputs: Any) -> Any:
        with torch.autocast(device, dtype=quantising.DTYPES.get(job.precision.compute or "bf16")):
            return model(**inputs)

    if job.framework.name not in ON_ACCELERATE:
        return within
    from accelerate.utils import convert_outputs_to_fp32

    widened: Callable[..., Any] = convert_outputs_to_fp32(within)
    return widened


def _modules(recorder: Recorder, model: torch.nn.Module) -> None:
    """Keep the recorder's idea of the module that runs up to date; in the backward pass, of the layer whose output's gradient came last."""
    stack: list[str] = []
    layer = [""]

    def reached(name: str) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            layer[0] = recorder.module = name

        return hook

    for name, module in model.named_modules():

        def enter(_: torch.nn.Module, __: object, *, name: str = name) -> None:
            stack.append(name)
            recorder.module = name

        def leave(_: torch.nn.Module, __: object, output: Any, *, name: str = name) -> None:
            if stack:
                stack.pop()
            recorder.module = stack[-1] if stack else layer[0] if recorder.phase == "backward" else ""
            first = output[0] if isinstance(output, tuple) and output else output
            if recorder.phase == "forward" and name.rpartition(".")[2].isdigit() and isinstance(first, torch.Tensor) and first.requires_grad:
                hooked: Any = first
                hooked.register_hook(reached(name))

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)
