"""What torch's own checkpoint was asked to run, read from its frame while a block runs within it; and why a block may not be run once more.

The frame tells what no hook does: the very function, its arguments and the options (torch 2.6 to 2.13, ``torch/utils/checkpoint.py``
``checkpoint``: ``function``, ``args``, ``kwargs``, ``preserve``, ``use_reentrant``, ``context_fn``, ``determinism_check``, ``early_stop``).
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import checkpoint as torchs

from advisor.measurement.watching.holders import locals_of

MAX_FRAMES = 256
MAX_NESTED = 8  # functions within functions
_CODE = inspect.unwrap(torchs.checkpoint).__code__
_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "early_stop")
_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Unfit(Exception):  # noqa: N818  a reason, not a fault
    """Why this block is not run once more."""


@dataclass(slots=True)
class Call:
    """A checkpoint's function with its inputs, without the graph that they come from. ``options``: of ``checkpoint`` itself."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    autocast: tuple[str, torch.dtype, bool] | None  # device type, dtype, whether casts are cached

    @property
    def selective(self) -> bool:
        """Whether some operators' outputs are kept, so that not all are computed again."""
        return self.options.get("context_fn") not in (None, torchs.noop_context_fn)

    def tensors(self) -> list[torch.Tensor]:
        """Its inputs, each once."""
        return [*{id(t): t for t in _tensors((self.args, self.kwargs, _given(self.function)))}.values()]

    def with_tensors(self, new: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Function and arguments with other tensors in the place of these; one that is given twice stays one."""
        made: dict[int, torch.Tensor] = {}

        def once(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = new(tensor)
            return made[id(tensor)]

        return _rebuilt(self.function, once), mapped(self.args, once), mapped(self.kwargs, once)


def running() -> Call | None:
    """The innermost checkpoint around the caller; ``None``: there is none.

    Raises:
        Unfit: its inputs can not be given once more without a side effect.
    """
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code is _CODE:
            return _of(locals_of(frame))
        frame = frame.f_back
    return None


def _of(names: dict[str, Any]) -> Call:
    function, args, kwargs = names["function"], names["args"], names["kwargs"]
    if any(True for _ in _tensors(_closed(function))):
        raise Unfit("what is checkpointed takes tensors from the function around it, whose graph a second run would meet")
    options = {name: names[name] for name in _OPTIONS if name in names} | {"preserve_rng_state": names.get("preserve", True)}
    found = Call(function, args, kwargs, options, None)
    device = next((t.device.type for t in found.tensors()), "cpu")
    if torch.is_autocast_enabled(device):
        found.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
    detached = found.with_tensors(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))
    found.function, found.args, found.kwargs = detached
    return found


def refuse(model: torch.nn.Module, block: torch.nn.Module) -> None:
    """What would act on others, or on the run, if the block ran once more.

    Raises:
        Unfit: naming it.
    """
    kinds = {type(module).__name__ for module in model.modules()}
    if any(hasattr(p, "_local_tensor") for p in block.parameters()) or kinds & {"FullyShardedDataParallel"}:
        raise Unfit("FSDP divides its parameters, and its hooks would gather them again")
    if any(hasattr(p, "ds_id") for p in block.parameters()):
        raise Unfit("DeepSpeed divides its parameters, and its hooks would gather them again")
    if compiled(model):
        raise Unfit("torch.compile has compiled the model, and other tensors would compile it again")
    every = torch.nn.modules.module
    if any(getattr(every, name, None) for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")):
        raise Unfit("hooks on every module are set, and would run again")
    for name, module in block.named_modules():
        if any(getattr(module, hooks, None) for hooks in _HOOKS):
            raise Unfit(f"{name or 'the block'} ({type(module).__name__}) has hooks, and they would run again")


def compiled(model: torch.nn.Module) -> bool:
    """Whether ``torch.compile`` has taken the model or a part of it."""
    return any(type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())


def mapped(value: Any, new: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A structure of arguments with other tensors.

    Raises:
        Unfit: it holds something that a run could change, and that can not be given twice.
    """
    if isinstance(value, torch.Tensor):
        return new(value)
    if isinstance(value, _PLAIN) or callable(value):
        return value
    if type(value) in (tuple, list):
        return type(value)(mapped(each, new) for each in value)
    if type(value) is dict:
        return {key: mapped(each, new) for key, each in value.items()}
    raise Unfit(f"it is given a {type(value).__name__}, which a second run could change")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _given(function: Any) -> Any:
    """Arguments that a ``functools.partial`` already has."""
    return (function.args, function.keywords, _given(function.func)) if isinstance(function, functools.partial) else ()


def _rebuilt(function: Any, new: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if not isinstance(function, functools.partial):
        return function
    return functools.partial(_rebuilt(function.func, new), *mapped(function.args, new), **mapped(function.keywords, new))


def _closed(function: Any, depth: int = 0) -> list[Any]:
    """What a function's cells and defaults hold, those of a partial's or a method's function too, and of functions in the cells."""
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    found: list[Any] = [getattr(function, "__defaults__", None) or (), getattr(function, "__kwdefaults__", None) or {}]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            inside = cell.cell_contents
        except ValueError:  # not yet filled
            continue
        nested = isinstance(inside, (functools.partial, types.MethodType, types.FunctionType)) and depth < MAX_NESTED
        found += _closed(inside, depth + 1) if nested else [inside]
    return found
