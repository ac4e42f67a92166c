"""The process that opens a snapshot: limits on itself first, then look, unpickle, summarise, and one line of JSON to its parent.

Started by :mod:`advisor.reading.snapshot.process` as ``python -m advisor.reading.snapshot.child MEMORY SECONDS [FILE]``; without a file the bytes
come on standard input. Answers ``{"summary": ...}`` or ``{"refused": "..."}``. It leaves without tidying up: a hostile structure can be slow to free.
"""

from __future__ import annotations

import gc
import io
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any


def limit(memory_bytes: int, seconds: int) -> None:
    """Bound this process: address space, processor seconds, no core file, no written file."""
    try:
        import resource
    except ImportError:  # Windows has no such limits: the parent's clock and the look at the opcodes are what is left
        return
    for what, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        _, hard = resource.getrlimit(what)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (bound, bound))


def answer(file: Path | None) -> dict[str, Any]:
    """The summary of a file or of standard input, or why it was refused."""
    from advisor.reading.snapshot.opcodes import RefusedError, scan
    from advisor.reading.snapshot.summary import summarise
    from advisor.reading.snapshot.unpickling import unpickle

    gc.disable()  # millions of small objects without cycles: collecting would cost more than reading
    try:
        if file is None:
            data = sys.stdin.buffer.read()
            scan(data)
            return {"summary": summarise(unpickle(io.BytesIO(data)), len(data))}
        with file.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as view:
                scan(view)
            return {"summary": summarise(unpickle(handle), size)}
    except RefusedError as refused:
        return {"refused": str(refused)}
    except MemoryError:
        return {"refused": "it needs more memory than a snapshot of its size may; it was not read further. Record fewer events (max_entries) and dump again"}
    except OSError as error:
        return {"refused": f"cannot be read: {error.strerror or type(error).__name__}"}
    except ValueError as error:
        return {"refused": f"cannot be read as a snapshot: {str(error)[:120]}"}


def main(arguments: list[str]) -> None:
    """Answer on standard output and leave."""
    limit(int(arguments[0]), int(arguments[1]))
    file = Path(arguments[2]) if len(arguments) > 2 else None
    try:
        text = json.dumps(answer(file))
    except MemoryError:
        text = '{"refused": "it needs more memory than is allowed"}'
    sys.stdout.write(text)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
