"""A few values of a tensor at fixed places, read without copying the rest of it."""

from __future__ import annotations

import torch


def sample(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """At most ``count`` values, evenly spread over the elements in their order, as a new tensor on the same device: ``[count]``."""
    with torch.no_grad():
        source, size = tensor.detach(), tensor.numel()
        if source.is_contiguous():
            return source.view(-1)[:: max(1, size // count)][:count].clone()
        places = torch.arange(0, size, max(1, size // count))[:count]  # the same places; flattening would copy the whole tensor
        return source[tuple(index.to(source.device) for index in torch.unravel_index(places, source.shape))]
