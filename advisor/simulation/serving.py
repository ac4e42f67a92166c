"""Many probes from one process that has loaded the libraries: each request is answered in a fork of it, with a time limit of its own.

Loading torch and transformers takes as long as probing a small model; the patches that make meta behave as CUDA are global, so no two
jobs share a process. One thread runs here until the fork, so nothing that a fork would lose is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

from advisor.simulation import answering

CHUNK = 1 << 16


def serve() -> int:
    """Answer requests, a line each, until standard input ends."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(ImportError):  # the fork says what is missing
        import torch
        import transformers

        from advisor.simulation.standins import packages

        torch.set_num_threads(1)
        packages.offer({})  # before a model's code is loaded, which asks once what is there
        import accelerate
        import peft

        from advisor.simulation import allocator, extrapolating, snapshot, step, timeline  # before any fork, so that each has the same code

        del accelerate, peft, transformers, allocator, extrapolating, snapshot, step, timeline
    for line in sys.stdin:
        request = json.loads(line)
        text = _forked(request, request.pop("timeout"))
        out.write((text or json.dumps({"error": "the probe's process ended without an answer"})) + "\n")
        out.flush()
    return 0


def _forked(request: dict[str, Any], seconds: float) -> str:
    """The answer of a child of this process, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        with contextlib.suppress(BaseException):
            answering.limit()
            data = json.dumps(answering.answer(request)).encode()
            with os.fdopen(write, "wb") as pipe:
                pipe.write(data)
            code = 0
        os._exit(code)
    os.close(write)
    try:
        return _read(read, time.monotonic() + seconds) or json.dumps({"error": f"the probe took longer than {seconds:.0f} s and was ended"})
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _read(pipe: int, deadline: float) -> str | None:
    """All that comes until the pipe is closed; None where time runs out first."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        data = os.read(pipe, CHUNK)
        if not data:
            return b"".join(parts).decode()
        parts.append(data)
    return None
