"""Where in the model's or a library's code an allocation was asked for."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import torch

_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(weakref.__file__)))
_AROUND = "deepspeed/utils/nvtx.py"  # wraps functions to give them a range in a profile


def site() -> str:
    """``file:line function`` of the innermost frame that is neither torch's nor the probe's; empty where C++ (autograd) called."""
    frame = sys._getframe(2)
    for _ in range(24):
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.startswith("<") and not name.endswith(_AROUND):
            return f"{'/'.join(name.split('/')[-3:])}:{frame.f_lineno} {frame.f_code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
