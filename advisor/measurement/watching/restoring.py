"""What a block's forward may change beside its result: random states, attributes of modules, tensors among them. All of it is put back."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import torch

_CONTAINERS = (dict, OrderedDict, list, set, deque)


class Before:
    """How it was. Buffers are not among it: a replay runs on copies of them."""

    def __init__(self, model: torch.nn.Module, devices: Iterable[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._devices = [(d, torch.get_device_module(d).get_rng_state(d)) for d in {d for d in devices if d.type not in ("cpu", "meta")}]
        self._python, numpy = random.getstate(), sys.modules.get("numpy")
        self._numpy: Any = None if numpy is None else (numpy.random, numpy.random.get_state())
        self._modules = [(vars(module), dict(vars(module))) for module in model.modules()]
        found = [value for _, names in self._modules for value in names.values()]
        self._containers = [(value, _items(value)) for value in found if type(value) in _CONTAINERS]
        self._tensors = [(t, t._version, t.detach().clone()) for t in found if isinstance(t, torch.Tensor) and not t.is_meta]
        self._generators = [(value, value.get_state()) for value in found if isinstance(value, torch.Generator)]

    def put_back(self) -> None:
        """As it was."""
        torch.set_rng_state(self._cpu)
        for device, state in self._devices:
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy[0].set_state(self._numpy[1])
        for generator, state in self._generators:
            generator.set_state(state)
        for now, names in self._modules:
            if len(now) != len(names) or any(now.get(key) is not value for key, value in names.items()):
                now.clear()
                now.update(names)
        for container, items in self._containers:
            if [*map(id, _items(container))] != [*map(id, items)]:
                container.clear()
                (container.update if isinstance(container, (dict, set)) else container.extend)(
                    zip(items[::2], items[1::2], strict=True) if isinstance(container, dict) else items
                )
        with torch.no_grad():
            for tensor, version, values in self._tensors:
                if tensor._version != version:
                    tensor.copy_(values)


def bytes_of(model: torch.nn.Module) -> int:
    """Bytes of the copies that :class:`Before` and a replay make of tensors: buffers, and tensors that are plain attributes."""
    plain = [t for module in model.modules() for t in vars(module).values() if isinstance(t, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in (*model.buffers(), *plain) if not t.is_meta)


def _items(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [each for pair in container.items() for each in pair]
    return [*container]
