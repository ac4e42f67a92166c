"""``python -m advisor.measurement`` where one rank of several runs out of memory in its n-th forward pass: ``FAULTY_RANK`` and ``FAULTY_PASS``."""

import os
from typing import Any

import torch

from advisor.measurement import __main__, real

SAYS = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 MiB is free."
shape, passes = real.shape, iter(range(1, 1000))


def runs_out(*_: Any) -> None:
    """As the allocator does, in one pass."""
    if next(passes) == int(os.environ["FAULTY_PASS"]):
        raise torch.OutOfMemoryError(SAYS)


def faulty(*args: Any, **options: Any) -> Any:
    """The job's model, with that."""
    model, notes = shape(*args, **options)
    next(m for m in model.modules() if isinstance(m, torch.nn.Embedding)).register_forward_hook(runs_out)
    return model, notes


if __name__ == "__main__":
    if os.environ["RANK"] == os.environ["FAULTY_RANK"]:
        real.shape = faulty
    raise SystemExit(__main__.main())
