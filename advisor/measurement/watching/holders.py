"""Which variable holds a tensor that neither the model nor the optimizer owns.

A search from the local and global names of the frames that run, through containers, objects and modules. Nothing found is kept: only ids and
names leave this module.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from advisor.measurement.watching import binding, sites

MAX_VISITED = 200_000
MAX_DEPTH = 14
_LEAVES = (str, bytes, int, float, complex, bool, type(None), types.ModuleType, type, types.CodeType, types.BuiltinFunctionType)
_SHELLS = ("IPython", "ipykernel")  # exit and quit among a notebook's names: each knows the shell, and so every other name
_CONTAINERS = (dict, list, tuple, set, deque)
_MODULE = frozenset(vars(torch.nn.Module()))  # what every module has: parameters, buffers, modules, hooks


@dataclass(frozen=True, slots=True)
class Holder:
    """A name that keeps tensors alive: ``losses`` or ``trainer.kept``, with the line that put something there."""

    name: str
    where: str
    kind: str  # type of what the name holds
    module: bool = False  # a torch.nn.Module
    checkpoint: bool = False  # a mapping with an optimizer's param_groups in it


NOBODY = Holder("(no Python name)", "", "")


def holders(wanted: set[int], owned: Iterable[object], model: torch.nn.Module | None = None) -> dict[int, Holder]:
    """For each id of a wanted object: who holds it. ``owned`` objects (the model, the optimizer) are not searched.

    Of ``model`` (one of them), the containers among its modules' attributes are: what a module keeps beside its parameters.
    """
    seen: set[int] = {id(o) for o in owned}
    found: dict[int, Holder] = {} if model is None else _of_modules(model, wanted, seen)
    visited = 0
    for frame in sites.user_frames():
        for names, whole in ((locals_of(frame), None), (frame.f_globals, "global")):
            if whole and id(names) in seen:
                continue
            seen.add(id(names))
            for name in [*names]:
                value = names.get(name)
                if name.startswith("__") or isinstance(value, _LEAVES) or (whole and isinstance(value, types.FunctionType)):
                    continue
                if type(value).__module__.partition(".")[0] in _SHELLS:
                    continue
                known: dict[str, Holder] = {}
                for item, path in _reachable(value, seen):
                    visited += 1
                    if id(item) in wanted and id(item) not in found:
                        if path not in known:
                            known[path] = _named(frame, name, value, path)
                        found[id(item)] = known[path]
                    if visited > MAX_VISITED:
                        return found
                if len(found) == len(wanted):
                    return found
    return found


def _of_modules(model: torch.nn.Module, wanted: set[int], seen: set[int]) -> dict[int, Holder]:
    found: dict[int, Holder] = {}
    for name, module in model.named_modules():
        for key, value in [*vars(module).items()]:
            if key in _MODULE or not value or not isinstance(value, _CONTAINERS):
                continue
            for item, _ in _reachable(value, seen):
                if id(item) in wanted and id(item) not in found:
                    where = _attribute_line(module, key) or sites.of_function(type(module).forward)
                    found[id(item)] = Holder(f"{name or type(module).__name__}.{key}", where, type(value).__name__)
    return found


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """A copy of a frame's locals. Before Python 3.13 the frame keeps what it answers; it is emptied, or it would keep tensors alive itself."""
    answer = frame.f_locals
    names = dict(answer)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(answer) <= 3:
        answer.clear()
    return names


def _reachable(root: object, seen: set[int]) -> Iterator[tuple[object, str]]:
    """Objects within containers, objects and modules, with the attribute or key by which the root leads to them."""
    queue: deque[tuple[object, str, int]] = deque([(root, "", 0)])
    while queue:
        item, path, depth = queue.popleft()
        if isinstance(item, _LEAVES) or id(item) in seen:
            continue
        if isinstance(item, torch.Tensor):
            yield item, path
            if item.is_leaf and item.grad is not None:  # asking another for .grad warns
                yield item.grad, path
            continue
        seen.add(id(item))
        yield item, path
        if depth >= MAX_DEPTH:
            continue
        if isinstance(item, dict):
            queue.extend((value, path or f"[{str(key)[:40]!r}]", depth + 1) for key, value in [*item.items()][:10_000])
        elif isinstance(item, (list, tuple, set, frozenset, deque)):
            queue.extend((value, path, depth + 1) for value in [*item][:10_000])
        elif isinstance(item, (types.FunctionType, types.MethodType)):
            function = item.__func__ if isinstance(item, types.MethodType) else item
            cells = getattr(function, "__closure__", None) or ()
            queue.extend((_cell(cell), path, depth + 1) for cell in cells)
        elif isinstance(item, types.GeneratorType) and item.gi_frame is not None:
            queue.extend((value, path, depth + 1) for value in locals_of(item.gi_frame).values())
        else:
            inside = getattr(item, "__dict__", None)
            if isinstance(inside, dict):
                queue.extend((value, path or f".{key}", depth + 1) for key, value in [*inside.items()])
            slots = getattr(type(item), "__slots__", None)
            if isinstance(slots, tuple) and not isinstance(item, torch.nn.Module):
                queue.extend((getattr(item, slot, None), path or f".{slot}", depth + 1) for slot in slots if isinstance(slot, str))


def _cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _named(frame: types.FrameType, name: str, value: object, path: str) -> Holder:
    plain_container = isinstance(value, (dict, list, tuple, set, deque, torch.Tensor, torch.nn.Module)) or "ModelOutput" in {
        c.__name__ for c in type(value).__mro__
    }
    attribute = path[1:] if path.startswith(".") and not plain_container else None
    where = _attribute_line(value, attribute) if attribute else None
    if where is None:
        where = _name_line(frame, name)
    held = vars(value).get(attribute, value) if attribute and hasattr(value, "__dict__") else value
    if isinstance(held, torch.nn.Module):
        value = held  # a trainer's reference model is a model, whoever has it
    shown = f"{name}.{attribute}" if attribute else name
    return Holder(shown, where, type(value).__name__, isinstance(value, torch.nn.Module), isinstance(value, dict) and _is_checkpoint(value))


def _name_line(frame: types.FrameType, name: str) -> str:
    code = frame.f_code
    line = binding.binding_line(code, name, until=binding.reached(frame))
    return f"{sites.shown(code.co_filename)}:{line or code.co_firstlineno}"


def _attribute_line(value: object, attribute: str) -> str | None:
    stores: list[str] = []
    growths: list[str] = []
    for owner in type(value).__mro__[:-1]:
        for function in vars(owner).values():
            if isinstance(function, types.FunctionType):
                place = sites.shown(function.__code__.co_filename)
                stored, grown = binding.bindings(function.__code__, "self", attribute)
                stores += [f"{place}:{line}" for line in stored]
                growths += [f"{place}:{line}" for line in grown]
    places = growths or stores
    return places[-1] if places else None


def _is_checkpoint(value: dict[Any, Any], depth: int = 0) -> bool:
    if "param_groups" in value:
        return True
    return depth < 2 and any(isinstance(v, dict) and _is_checkpoint(v, depth + 1) for v in [*value.values()][:200])
