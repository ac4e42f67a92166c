"""What XLA's out-of-memory text says of the compiled program: its sizes as planned, and the largest buffers with the operation that makes each.

Source: xla ``service/buffer_assignment.cc`` BufferAssignment::ToVerboseString ("BufferAssignment OOM Debugging.", "BufferAssignment stats:", "Peak
buffers:"), ``OpMetadataToString`` (op_name, source_file, source_line); JAX names an operation by the transformations around it:
``jvp(...)`` is the forward pass of a gradient, ``transpose(jvp(...))`` its backward pass. The sizes are what the program was planned with before it ran,
not what was held at a moment: no sample of memory is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from advisor.evidence import Failure, Frame
from advisor.reading.lines import Excerpt, LogLine
from advisor.reading.pattern import pattern as lazily
from advisor.units import read_size

STATS = lazily(r"^\s*(parameter|constant|maybe_live_out|preallocated temp|total) (allocation|fragmentation):\s*(\d[\d.]{0,20}\s?[KMGT]?i?B)")
_BUFFERS = lazily(r"^\s*(?:Peak buffers:|Largest program allocations in \w{1,20}:)")  # the second: XLA:TPU as it compiles
_SIZE = lazily(r"^\s*(?:\d{1,3}\.\s*)?Size:\s*(\d[\d.]{0,20}\s?[KMGT]?(?:i?B)?)")
_OPERATOR = lazily(r"^\s*Operator:.{0,400}?\bop_name=\"([^\"]{1,600})\"(?:.{0,200}?\bsource_file=\"([^\"]{1,300})\" source_line=(\d{1,7}))?")
_SHAPE = lazily(r"^\s*Shape:\s*(\w{1,12}\[[\d,]{1,80}\])")
_BACKENDS = ("jax", "tensorflow")
REACH = 60  # lines behind the error's first in which its statistics stand
TOP = 3  # of the largest buffers are told


def with_program(failure: Failure, text: Excerpt) -> Failure:
    """The failure of an XLA program with what its text says of the program; the operation of the largest buffer as its innermost frame: what called the program
    stands above it."""
    if failure.backend not in _BACKENDS:
        return failure
    first = int(failure.where.rpartition(":")[2])
    lines = [line for line in text.lines if first < line.number <= first + REACH]
    planned = {
        m[1].replace(" ", "_"): size.bytes for line in lines if (m := STATS.match(line.text)) is not None and m[2] == "allocation" and (size := read_size(m[3]))
    }
    buffers = list(_buffers(lines, text))
    if not planned and not buffers:
        return failure
    details: tuple[tuple[str, Any], ...] = tuple((f"program_{name}_bytes", size) for name, size in planned.items())
    details += (("peak_buffers", tuple((size, frame.code.partition(" -> ")[0]) for size, frame in buffers[:TOP])),) if buffers else ()
    failure = replace(failure, details=failure.details + details)
    if not buffers:
        return failure
    frame = buffers[0][1]
    phase = failure.phase or ("backward" if "transpose(" in frame.code else "forward" if "jvp(" in frame.code else None)
    return replace(failure, frames=(*failure.frames, frame), phase=phase)


def _buffers(lines: Sequence[LogLine], text: Excerpt) -> list[tuple[int, Frame]]:
    """The peak buffers that name their operation, largest first as XLA prints them."""
    found: list[tuple[int, Frame]] = []
    size, listed = 0, False
    for line in lines:
        listed = listed or _BUFFERS.match(line.text) is not None
        if listed and (m := _SIZE.match(line.text)) is not None and (read := read_size(m[1] + ("iB" if m[1][-1] in "KMGT" else ""))) is not None:
            size = read.bytes
        elif listed and size and (m := _OPERATOR.match(line.text)) is not None:
            found.append((size, Frame(text.where(line), (m[2] or "").rpartition("/")[2], int(m[3] or 0), m[1].rpartition("/")[2][:80], m[1][-240:], line.rank)))
            size = 0
        elif listed and not size and found and (m := _SHAPE.match(line.text)) is not None and " -> " not in found[-1][1].code:
            found[-1] = (found[-1][0], replace(found[-1][1], code=f"{found[-1][1].code} -> {m[1]}"))
    return found
