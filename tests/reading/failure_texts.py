"""Failure texts written from the grammar of each version's source, with figures that obey its identities."""

from __future__ import annotations

GIB = 1024**3
MIB = 1024**2

OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.25 GiB (GPU 1; 31.75 GiB total capacity; 27.50 GiB already allocated; 1.00 GiB free; "
    "30.00 GiB {word})"
)
ADVICE_110 = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory "
    "Management and PYTORCH_CUDA_ALLOC_CONF"
)
ADVICE_22 = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
NEW = (
    "{error}: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 1 has a total {capacity} of 31.75 GiB of which 1.00 GiB is free. "
    "{processes}{allowed}Of the allocated memory 27.50 GiB is allocated by PyTorch, {private}and 2.50 GiB is reserved by PyTorch but unallocated."
)

VERSIONS: dict[str, str] = {
    "1.2 cached": OLD.replace("30.00 GiB", "2.50 GiB").format(word="cached"),  # THCCachingAllocator: amount_cached - amount_allocated
    "1.9": OLD.format(word="reserved in total by PyTorch"),
    "1.10 with advice": OLD.format(word="reserved in total by PyTorch") + ADVICE_110,
    "2.0": "torch.cuda." + OLD.format(word="reserved in total by PyTorch").replace("RuntimeError", "OutOfMemoryError") + ADVICE_110,
    "2.1 misspelt": NEW.format(
        error="torch.cuda.OutOfMemoryError", capacity="capacty", processes="Process 3258 has 30.75 GiB memory in use. ", allowed="", private=""
    ),
    "2.2": NEW.format(
        error="torch.cuda.OutOfMemoryError",
        capacity="capacity",
        processes="Including non-PyTorch memory, this process has 30.60 GiB memory in use. ",
        allowed="",
        private="",
    )
    + ADVICE_22,
    "2.5": NEW.format(error="torch.OutOfMemoryError", capacity="capacity", processes="", allowed="", private="") + ADVICE_22,
    "notebook": NEW.format(error="OutOfMemoryError", capacity="capacity", processes="", allowed="", private="") + ADVICE_22,
    "2.9 alloc conf": NEW.format(error="torch.OutOfMemoryError", capacity="capacity", processes="", allowed="", private="")
    + ADVICE_22.replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "hip": (NEW.format(error="torch.OutOfMemoryError", capacity="capacity", processes="", allowed="", private="") + ADVICE_22).replace("CUDA out", "HIP out"),
    "xpu": NEW.format(error="torch.OutOfMemoryError", capacity="capacity", processes="", allowed="", private="").replace("CUDA out", "XPU out")
    + " Please use `empty_cache` to release all unoccupied cached memory.",
    "npu": OLD.format(word="reserved in total by PyTorch")
    .replace("CUDA out", "NPU out")
    .replace("(GPU 1", "(NPU 1")
    .replace("already allocated;", "already allocated; 27.50 GiB current active;"),
}
