"""Runs functions of files beside this one, each in a fork of this process: torch is imported once, and none meets what another, or the tests, left behind.

``python forking.py``: a line on standard input is ``module.function``; a line of JSON on standard output says what it found, or raised. Torch has one
thread and no operator has run before the fork, so no thread is lost in it.
"""

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any

import torch
import torch._dynamo  # an optimizer imports it at its first step, with all that it needs: once is enough


def ran(name: str) -> dict[str, Any]:
    """What the named function found, where it has watched a run: ``failed`` (of the watcher itself), and (cause, place, title) of each finding."""
    module, _, function = name.rpartition(".")
    torch.manual_seed(0)
    seen = getattr(import_module(module), function)()
    return {} if seen is None else {"failed": seen.failed, "findings": [(f.kind, f.where, f.title) for f in seen.findings]}


def forked(name: str) -> bytes:
    """The answer of a child, as a line; where it died without one, that."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = ran(name)
        except BaseException:
            answer = {"raised": traceback.format_exc()}
        os.write(write, json.dumps(answer).encode() + b"\n")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        line = answers.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return line or json.dumps({"raised": f"the process ended with {ended}"}).encode() + b"\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_module("advisor.measurement.watching.session")  # before the fork: all of them watch
    for asked in sys.stdin:
        sys.stdout.buffer.write(forked(asked.strip()))
        sys.stdout.buffer.flush()
