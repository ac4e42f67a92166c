"""What a model says about itself: whether activation checkpointing is asked for, its repeated blocks, its vocabulary."""

from __future__ import annotations

import torch

from advisor.measurement.watching import sites

SWITCHES = (
    "gradient_checkpointing", "use_gradient_checkpointing", "use_checkpoint", "use_checkpointing", "grad_checkpointing", "activation_checkpointing",
    "checkpoint_activations",
)  # fmt: skip


def checkpointing(model: torch.nn.Module) -> tuple[str, str] | None:
    """``(switch, file:line of the module's forward)`` of the first module whose switch is on."""
    for name, module in model.named_modules():
        for switch in SWITCHES:
            if module.__dict__.get(switch) is True:  # not getattr: a property may warn or compute
                return f"{name or type(module).__name__}.{switch}", where(module)
    return None


def where(module: torch.nn.Module) -> str:
    """The place of a module's forward."""
    return sites.of_function(type(module).forward)


def blocks(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The repeated blocks: the list with the most parameters among lists of at least two modules of one class; else the direct children."""
    best: list[tuple[str, torch.nn.Module]] = []
    most = 0
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 1 and len({type(m) for m in module}) == 1:
            size = sum(p.numel() for p in module.parameters())
            if size > most:
                most, best = size, [(f"{name}.{number}" if name else str(number), child) for number, child in enumerate(module)]
    return best or [(name, child) for name, child in model.named_children() if any(True for _ in child.parameters())]


def vocabulary(model: torch.nn.Module) -> int:
    """Rows of the largest embedding; 0 where there is none."""
    return max((module.num_embeddings for module in model.modules() if isinstance(module, torch.nn.Embedding)), default=0)


def embeddings(model: torch.nn.Module) -> set[int]:
    """Ids of embedding weights: their gradients are zero for every token that did not occur."""
    return {id(module.weight) for module in model.modules() if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))}
