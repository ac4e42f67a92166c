"""bitsandbytes' own failures: printed by its C code, after which the process exits without a traceback.

``CUDA_CHECK_RETURN`` (csrc/pythonInterface.cpp, csrc/ops.cu) prints "Error <text> at line <n> in file <path>". The paged optimizer's managed
memory is asked for and prefetched there; under WSL the prefetch fails though memory is free. Before anything is placed, transformers
(quantizers/quantizer_bnb_4bit.py, quantizer_bnb_8bit.py: validate_environment) refuses a device map that puts modules off the card for want of room;
accelerate (big_modeling.py dispatch_model, accelerator.py prepare_model) and transformers refuse to move, train or place a model that such a map spilled.
"""

from __future__ import annotations

import re

from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily

_SPILLED = (
    r"with CPU or disk offload\b|can't move a model that has some modules offloaded to cpu or disk|had weights offloaded to the disk\. Please provide|"
    r"need an `offload_dir` to dispatch this model"
)
HEAD = lazily(rf"\bError [\w ]{{2,80}} at line \d{{1,6}} in file \S|modules are dispatched on the CPU or the disk|{_SPILLED}", re.IGNORECASE)
_DISPATCHED = lazily(rf"modules are dispatched on the CPU or the disk.{{0,80}}enough GPU RAM|{_SPILLED}", re.IGNORECASE | re.DOTALL)
_TEXT = lazily(r"Error ([\w ]{2,80}?) at line (\d{1,6}) in file (\S[^\n]{0,300}?\.\w{1,4}\b|\S{1,300})", re.IGNORECASE)


def read_failure(text: str) -> Found | None:
    """A failure of bitsandbytes' CUDA calls; ``details``: line, file."""
    if _DISPATCHED.search(text) is not None:
        return Found("gpu-memory", "cuda", details=(("what", "device map"),), phase="load")
    match = _TEXT.search(text)
    if match is None or not re.search(r"csrc|bitsandbytes|\.cu\b|\.cpp\b|\.c\b", match[3]):
        return None
    what = match[1].lower()
    file = match[3].replace("\\", "/").rpartition("/")[2]
    details = (("library", "bitsandbytes"), ("file", file), ("line", int(match[2])), ("error", what))
    if "out of memory" in what:
        paged = file.startswith("pythonInterface")
        return Found("gpu-driver", "cuda", details=(*details, ("managed", paged)), phase="step" if paged else None)
    return Found("not-memory", "cuda", details=details)
