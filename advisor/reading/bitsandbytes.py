"""bitsandbytes' own failures: printed by its C code, after which the process exits without a traceback.

``CUDA_CHECK_RETURN`` (csrc/pythonInterface.cpp, csrc/ops.cu) prints "Error <text> at line <n> in file <path>". The paged optimizer's managed
memory is asked for and prefetched there; under WSL the prefetch fails though memory is free.
"""

from __future__ import annotations

import re

from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily

HEAD = lazily(r"\bError [\w ]{2,80} at line \d{1,6} in file \S", re.IGNORECASE)
_TEXT = lazily(r"Error ([\w ]{2,80}?) at line (\d{1,6}) in file (\S{1,300})", re.IGNORECASE)


def read_failure(text: str) -> Found | None:
    """A failure of bitsandbytes' CUDA calls; ``details``: line, file."""
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
