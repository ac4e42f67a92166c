"""Runs planted faults, each in a fork of this process: torch is imported once, and no run meets what another, or the tests themselves, left behind.

``python forking.py``: a line on standard input names a function of :mod:`faults`; a line of JSON on standard output says what was found. Torch has
one thread and no operator has run before the fork, so no thread is lost in it.
"""

import json
import os
import sys
import traceback

import faults  # beside this file
import torch
import torch._dynamo  # an optimizer imports it at its first step, with all that it needs: once is enough


def ran(name: str) -> dict[str, object]:
    """What watching the named run found: ``failed`` (of the watcher itself), and (cause, place, title) of each finding."""
    torch.manual_seed(0)
    seen = getattr(faults, name)()
    return {"failed": seen.failed, "findings": [(f.kind, f.where, f.title) for f in seen.findings]}


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
    for asked in sys.stdin:
        sys.stdout.buffer.write(forked(asked.strip()))
        sys.stdout.buffer.flush()
