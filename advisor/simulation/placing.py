"""Where the step is: the module that runs, and the moment of the step in the estimate's own terms, so that the two can be compared there.

Within the backward pass nothing says which module it is in; a hook on each block's output tells when its gradient has come, which is when
the block's own backward pass begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor.simulation.recorder import Recorder

FORWARD, LOSS, LOSS_BACKWARD, LAST, MIDDLE, FIRST, ROOT, STEP = (
    "forward.blocks", "loss.forward", "loss.backward", "backward.last-block", "backward.middle-blocks", "backward.first-block", "backward.root", "step.update",
)  # fmt: skip
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module")


def plain(name: str) -> str:
    """A module's name without what wrappers put in it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def follow(recorder: Recorder, model: torch.nn.Module) -> None:
    """Keep the recorder's idea of module and moment up to date by hooks on every module."""
    stack: list[str] = []
    reached = [""]
    order = blocks(model)
    last = order[-1] if order else None

    def arrived(name: str) -> Callable[[torch.Tensor], None]:
        moment = LAST if name == last else FIRST if name == order[0] else MIDDLE

        def hook(_: torch.Tensor) -> None:
            reached[0] = recorder.module = name
            if name in order:
                recorder.moment = moment

        return hook

    def past_first(_: torch.Tensor) -> None:
        recorder.moment = ROOT

    for path, module in model.named_modules():
        name = plain(path)

        def enter(_: torch.nn.Module, inputs: tuple[Any, ...], *, name: str = name) -> None:
            stack.append(name)
            recorder.module = name
            if order and name == order[0] and recorder.phase == "forward":
                _hook(inputs, past_first)

        def leave(_: torch.nn.Module, __: object, output: Any, *, name: str = name) -> None:
            if stack:
                stack.pop()
            recorder.module = stack[-1] if stack else reached[0] if recorder.phase == "backward" else ""
            if recorder.phase == "forward" and name.rpartition(".")[2].isdigit():
                _hook(output if isinstance(output, tuple) else (output,), arrived(name))
                if name == last:
                    recorder.moment = LOSS

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)


def _hook(values: tuple[Any, ...], hook: Callable[[torch.Tensor], None]) -> None:
    first = values[0] if values else None
    if isinstance(first, torch.Tensor) and first.requires_grad:
        hooked: Any = first
        hooked.register_hook(hook)


def blocks(model: torch.nn.Module) -> list[str]:
    """Names of the model's repeated blocks in their order: the numbered modules of the list that holds the most parameters."""
    stacks: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for path, module in model.named_modules():
        name = plain(path)
        parent, _, number = name.rpartition(".")
        if number.isdigit() and not any(part.isdigit() for part in parent.split(".")):
            stacks.setdefault(parent, []).append(name)
            sizes[parent] = sizes.get(parent, 0) + sum(p.numel() for p in module.parameters())
    return stacks[max(sizes, key=lambda parent: sizes[parent])] if sizes else []
