"""What autograd saves and what a block's passes need, measured on the meta device with CUDA's kernels put in by hand.

The judge of the tapes: the real modelling code runs, its distinct saved storages (parameters excluded) and every storage's birth and
death are recorded. Attention goes through the flash operator, dropout through ``native_dropout``, as on a GPU.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

ATEN = torch.ops.aten


def _attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None, enable_gqa: bool = False
) -> Any:
    assert attn_mask is None
    return ATEN._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale or 1 / math.sqrt(q.shape[-1]))[0]


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return x if not training or p == 0 else torch.native_dropout(x, p, True)[0]


@contextlib.contextmanager
def cuda_kernels() -> Iterator[None]:
    """Attention and dropout as CUDA runs them; values that Python asks of a meta tensor are true or one."""
    tensor, truth = torch.Tensor, torch.Tensor.__bool__
    changes: list[tuple[Any, str, Any]] = [(functional, "scaled_dot_product_attention", _attention), (functional, "dropout", _dropout)]
    changes.append((tensor, "__bool__", lambda t: True if t.device.type == "meta" else truth(t)))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, new in changes:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


def model(config: Any, layers: int, *, attention: str = "sdpa", change: Callable[[Any], Any] | None = None) -> Any:
    """The model of a config with so many layers, bf16, on the meta device, in training."""
    import transformers

    values = {**config.to_dict(), "num_hidden_layers": layers}
    if values.get("layer_types"):
        values["layer_types"] = [values["layer_types"][0]] * layers
    if values.get("no_rope_layers"):
        values["no_rope_layers"] = [1] * layers
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            made = transformers.AutoModelForCausalLM.from_config(type(config)(**values), attn_implementation=attention).train()
    finally:
        torch.set_default_dtype(torch.float32)
    return change(made) if change else made


def saved(made: Any, batch: int, sequence: int) -> int:
    """Bytes of the distinct storages that autograd saves in one forward pass, parameters and inputs excluded."""
    ids = torch.zeros(batch, sequence, dtype=torch.long, device="meta")
    own = {t.untyped_storage()._cdata for t in [*made.parameters(), *made.buffers(), ids]}
    seen: dict[int, Any] = {}

    def pack(t: Any) -> Any:
        storage = t.untyped_storage()
        if storage._cdata not in own:
            seen.setdefault(storage._cdata, storage)
        return t

    with cuda_kernels(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = made(input_ids=ids, use_cache=False).logits
    total = sum(storage.nbytes() for storage in seen.values())
    del out
    return total


def block_saves(config: Any, batch: int, sequence: int, **how: Any) -> int:
    """Bytes that one block saves: what the third block adds to two."""
    return saved(model(config, 3, **how), batch, sequence) - saved(model(config, 2, **how), batch, sequence)


class Recorder(TorchDispatchMode):
    """Bytes alive, from each storage's birth to its death; the largest since ``mark``."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.keep: dict[int, Any] = {}
        self.pending: tuple[int, int, int] | None = None
        self.merged: dict[int, int] = {}

    def see(self, t: Any) -> bool:
        """Count a tensor's storage, once."""
        storage = t.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.keep or not size:
            return False
        self.alive += size
        self.keep[key] = weakref.finalize(storage, self._dead, key, size)
        self.keep[key].atexit = False
        self.before, self.peak = self.peak, max(self.peak, self.alive)
        return True

    def _dead(self, key: int, size: int) -> None:
        self.keep.pop(key, None)
        pending, self.pending = self.pending, None
        if pending and pending[0] == key:  # the engine adds gradients in place; a dispatch mode makes it copy
            self.peak = pending[2]
        self.alive -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.pending = None
        if func.namespace == "prim":
            return out
        peak = self.peak
        fresh = [self.see(t) for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
        if func is ATEN.add.Tensor and not torch.is_grad_enabled() and fresh == [True] and isinstance(args[1], torch.Tensor):
            self.pending = (args[0].untyped_storage()._cdata, 0, peak)
        return out


def block_backward_peak(config: Any, batch: int, sequence: int, **how: Any) -> int:
    """Bytes of the largest moment of one block's backward pass: saved tensors, gradients born, temporaries; input and its gradient excluded."""
    made = model(config, 2, **how)
    inner = made.get_base_model() if hasattr(made, "get_base_model") else made
    body = getattr(inner, inner.base_model_prefix)
    layer = (body.layers if hasattr(body, "layers") else body.h)[0]
    x = torch.empty(batch, sequence, config.hidden_size, dtype=torch.bfloat16, device="meta").requires_grad_(True)
    given: dict[str, Any] = {}
    if hasattr(body, "rotary_emb"):
        given["position_embeddings"] = body.rotary_emb(x, torch.arange(sequence, device="meta")[None])
    gradient = torch.empty_like(x)
    recorder = Recorder()
    for t in [*made.parameters(), *made.buffers(), x, gradient, *given.get("position_embeddings", ())]:
        recorder.see(t)
    start = recorder.alive
    with cuda_kernels(), recorder:
        out = layer(x, **given)
        out = out[0] if isinstance(out, tuple) else out
        recorder.peak = recorder.alive
        torch.autograd.backward(out, gradient)
    return recorder.peak - start - out.numel() * 2
