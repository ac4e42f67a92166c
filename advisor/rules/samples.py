"""Texts for rules' examples, as the libraries' own code prints them (c10 ``CUDACachingAllocator.cpp``, torch 2.5 and later)."""

from __future__ import annotations


def oom(requested: str, *, allocated: float, unallocated: float = 0.4, free: float = 0.2, capacity: float = 79.10, own: float | None = None) -> str:
    """The out-of-memory sentence of torch; ``requested`` as printed (``"1.35 GiB"``), the rest in GiB."""
    held = capacity - free if own is None else own
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of {capacity:.2f} GiB of which "
        f"{free:.2f} GiB is free. Including non-PyTorch memory, this process has {held:.2f} GiB memory in use. Of the allocated memory "
        f"{allocated:.2f} GiB is allocated by PyTorch, and {unallocated:.2f} GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)\n"
    )


def trace(*frames: str) -> str:
    """A traceback's head: each frame ``"file|function|code"``."""
    lines = ["Traceback (most recent call last):"]
    for number, frame in enumerate(frames):
        file, function, code = (*frame.split("|"), "", "")[:3]
        lines.append(f'  File "/usr/lib/python3/dist-packages/{file}", line {100 + number}, in {function}')
        if code:
            lines.append(f"    {code}")
    return "\n".join(lines) + "\n"


def job(model: str = "meta-llama/Llama-3.1-8B", **sections: str) -> str:
    """A job file: ``job(batch="{micro_batch: 4, seq_len: 4096}")``."""
    lines = ["version: 1", f"model: {{name: {model}}}"]
    lines += [f"{name}: {value}" for name, value in sections.items()]
    return "\n".join(lines) + "\n"
