"""Selective checkpointing as torchtitan does it: every n-th block whole, or a policy over operators that keeps every second matrix product.

Read: torchtitan 0.1.0 models/llama3/infra/parallelize.py ``_apply_ac_to_transformer_block``, 0.2.0 distributed/activation_checkpoint.py; torch 2.13
utils/checkpoint.py ``create_selective_checkpoint_contexts``. The wrapper keeps no RNG states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from advisor.job import Job
from advisor.simulation.request import CannotProbe

ATEN = torch.ops.aten
KEPT = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")
PRODUCTS = (ATEN.mm.default, ATEN._scaled_mm.default)  # torchao's fp8 tensors are multiplied by ``mm`` too, which hands on to the second
UNUSED_PRODUCT = 7  # the block's last product (w2): its sum needs no operand in the backward pass, so a compiled block does not keep it


def apply(model: torch.nn.Module, job: Job, names: set[str]) -> None:
    """Wrap the blocks whose classes are named.

    Raises:
        CannotProbe: groups of operators by Megatron's names.
    """
    chosen = job.activations.selective
    if chosen is None or (chosen.policy is None and chosen.every_nth_layer is None):
        raise CannotProbe("the probe runs selective checkpointing by torchtitan's policy or every n-th layer only: the estimate stands in")
    compiled = bool(job.activations.compile)
    for number, (parent, name, block) in enumerate(list(_blocks(model, names)), start=1):
        if chosen.policy == "op":
            parent._modules[name] = checkpoint_wrapper(block, context_fn=_contexts(compiled=compiled), preserve_rng_state=False)
        elif number % (chosen.every_nth_layer or 1) == 0:
            parent._modules[name] = checkpoint_wrapper(block, preserve_rng_state=False)


def whole(model: torch.nn.Module, names: set[str]) -> None:
    """Wrap every block, all of it recomputed."""
    for parent, name, block in list(_blocks(model, names)):
        parent._modules[name] = checkpoint_wrapper(block, preserve_rng_state=False)


def wrapped(module: torch.nn.Module) -> torch.nn.Module:
    """What a checkpointing wrapper holds; any other module as it is."""
    inner: torch.nn.Module = module._checkpoint_wrapped_module if isinstance(module, CheckpointWrapper) else module
    return inner


def _blocks(model: torch.nn.Module, names: set[str]) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Module]]:
    for parent in model.modules():
        yield from ((parent, name, child) for name, child in parent.named_children() if type(child).__name__ in names)


def _contexts(*, compiled: bool) -> Callable[[], Any]:
    kept = {getattr(ATEN, name).default for name in KEPT} | {ATEN.max.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}

    def contexts() -> Any:
        products = {True: 0, False: 0}  # seen in the recomputation, and in the forward pass

        def policy(context: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            if function in PRODUCTS:
                products[context.is_recompute] += 1
                number = products[context.is_recompute]
                save = number % 2 == 1 and not (compiled and number == UNUSED_PRODUCT)
            else:
                save = function in kept
            return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

        made: Any = create_selective_checkpoint_contexts
        return made(policy)

    return contexts
