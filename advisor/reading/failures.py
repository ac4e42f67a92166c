"""Failures out of a text's lines: each with its counters, its frames and its phase; the same failure printed twice is one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from advisor.evidence import Failure, FailureKind, Frame
from advisor.reading import bitsandbytes, collectives, engines, hosted, jax_tf, mlx, own_words, pytorch, xla
from advisor.reading.found import Found
from advisor.reading.lines import Excerpt, LogLine
from advisor.reading.mentions import only_mentioned
from advisor.reading.pattern import pattern as lazily
from advisor.reading.phase import phase_of
from advisor.reading.tracebacks import Trace, exception_of, frame_of, traces
from advisor.reading.writers import settled
from advisor.units import Size

WINDOW = 14  # lines behind a failure's first line that may belong to its text
MAX_FAILURES = 400
_READERS: tuple[tuple[re.Pattern[str], Callable[[str], Found | None]], ...] = (
    (engines.HEAD, engines.read_failure),
    (jax_tf.HEAD, jax_tf.read_failure),
    (bitsandbytes.HEAD, bitsandbytes.read_failure),
    (mlx.HEAD, mlx.read_failure),
    (hosted.HEAD, hosted.read_failure),
    (own_words.HEAD, own_words.read_failure),
    (pytorch.HEAD, pytorch.read_failure),
    (collectives.HEAD, collectives.read_failure),
)
_WORDS = (  # one of these is in every line that a reader's head finds: a cheap test before it
    "memory", "alloc", "gpu ram", "dispatched on", "exhausted", "error", "exit", "return code", "sig", "kill", "nccl", "cuda", "watchdog", "timed out",
    "kv cache", "seq len", "sampler", "graph failed", "batch size found", "abruptly",
    "unexpectedly", "unbalanced", "not initialized", "badalloc",
    "kernel", "session crashed", "bus error", "no space", "connection reset", "out of", "cublas", "cudnn", "memory_utilization", "mem-fraction",
)  # fmt: skip
_NOT_FAILURES = lazily(r"KeyboardInterrupt|SystemExit|StopIteration|GeneratorExit|Warning$")
_SHARED = lazily(r"multiprocessing[/\\](?:synchronize|heap|shared_memory|reductions|queues)")  # semaphores and tensors between processes live in /dev/shm
_QUOTED = lazily(r"[a-z,] [\"\u201c](?:[\w.]{1,60}(?:Error|Exception): )?(?:CUDA|HIP) (?:error: )?out of memory", re.IGNORECASE)
_STATEMENT = lazily(r"^\s{2,40}(?:return |[\w.\[\], ]{1,80} [-+*/|]?= )?[A-Za-z_][\w.]{0,80}\(.{1,300}\)?$")
_RAISES = lazily(r"[\s\d│|❱>-]{0,40}raise \w[\w.]{0,80}\(")
_WRAPPED = ("outofmemory", "triedtoallocate", "totalcapacityof")


def failures_of(text: Excerpt) -> list[Failure]:
    """Every failure of one text in the order in which it was printed."""
    out: list[Failure] = []
    streams: dict[str, list[LogLine]] = {}
    for line in settled(text.lines):
        streams.setdefault(line.stream, []).append(line)
    for lines in streams.values():
        out.extend(_of_stream(lines, text.name))
    out.sort(key=lambda failure: int(failure.where.rpartition(":")[2]))
    return [xla.with_program(failure, text) for failure in _distinct(_joined(_unquoted(out)))[:MAX_FAILURES]]


def loose_frames(text: Excerpt) -> tuple[Frame, ...]:
    """The frames of a text that is one traceback without its error line."""
    found = traces(list(text.lines), text.name)
    return found[0].frames if len(found) == 1 and found[0].exception is None else ()


def _unquoted(failures: list[Failure]) -> list[Failure]:
    """Without what a person only mentions, and what another text quotes (data that speaks of an error), where there is a failure beside it."""
    failures = [failure for failure in failures if not only_mentioned(failure)]
    own = [failure for failure in failures if failure.frames or not _QUOTED.search(failure.text)]
    return own if any(failure.frames for failure in own) else failures


def _of_stream(lines: list[LogLine], name: str) -> Iterator[Failure]:
    found_traces = traces(lines, name)
    explained: set[int] = set()
    read: set[int] = set()
    index = 0
    while index < len(lines):
        found, length, window = _at(lines, index)
        if found is None:
            index += 1
            continue
        trace = _trace_for(found_traces, lines, index, length)
        if trace is not None:
            explained.add(trace.at)
        yield _failure(found, lines[index], name, window, trace.frames if trace is not None else _statement(lines, index, name))
        read.update(range(index, index + length))
        index += length
    yield from _bare(lines, name, found_traces, read)
    for trace in found_traces:
        if trace.at not in explained and trace.exception is not None and not _NOT_FAILURES.search(trace.exception):
            at = lines[trace.at]
            headed = at.text.startswith(" ") or exception_of(at.text) is None  # a notebook names the class above its frames; the message was cut off
            kind: FailureKind = "gpu-memory" if headed and trace.exception.endswith("OutOfMemoryError") else "not-memory"
            yield _failure(Found(kind, details=(("exception", trace.exception),)), at, name, trace.exception if headed else at.text, trace.frames)


def _bare(lines: list[LogLine], name: str, found: Sequence[Trace], read: set[int]) -> Iterator[Failure]:
    """An exception's own line, pasted without the traceback above it, of which no reader knows a memory failure (``ImportError: cannot import name ...``)."""
    within = {index for trace in found for index in range(trace.start, trace.at + 1)}
    for index, line in enumerate(lines):
        if index in read or index in within or line.text[:1].isspace() or ": " not in line.text or line.text.startswith("E "):
            continue
        said = exception_of(line.text)
        if said is not None and said[1] and not _NOT_FAILURES.search(said[0]):
            yield _failure(Found("not-memory", details=(("exception", said[0]),)), line, name, line.text, ())


def _at(lines: list[LogLine], index: int) -> tuple[Found | None, int, str]:
    """The failure that starts at a line, how many lines it takes, and its text."""
    text = lines[index].text
    lowered = text.lower()
    named = any(word in lowered for word in _WORDS)
    if "traceback (most" in lowered or (named and (frame_of(lines[index], "") is not None or _is_code(lines, index))):
        return None, 1, ""
    hits = [read for head, read in _READERS if head.search(text)] if named else []
    if not hits and len(text) >= 20 and _wrapped_head(lines, index):
        hits = [pytorch.read_failure]
    if not hits:
        return None, 1, ""
    longest = _length(lines, index)
    for read in hits:
        found = read(_joint(lines, index, longest))
        if found is None:
            continue
        length = next(n for n in range(1, longest + 1) if n == longest or read(_joint(lines, index, n)) == found)
        return found, length, _joint(lines, index, length)
    return None, 1, ""


def _is_code(lines: list[LogLine], index: int) -> bool:
    """Whether a line is code that a traceback shows: it stands indented under a frame, or is the statement that raises."""
    text = lines[index].text
    return _RAISES.match(text) is not None or (
        index > 0 and text[:1].isspace() and frame_of(lines[index - 1], "") is not None and exception_of(text.strip()) is None and "ried to" not in text
    )


def _joint(lines: list[LogLine], index: int, length: int) -> str:
    return "\n".join(line.text for line in lines[index : index + length])


def _wrapped_head(lines: list[LogLine], index: int) -> bool:
    """Whether a failure's first words start on a line and go on on the next, as a terminal breaks them."""
    if index + 1 >= len(lines) or lines[index + 1].number != lines[index].number + 1:
        return False
    first = re.sub(r"\s+", "", lines[index].text[-60:]).lower()
    both = first + re.sub(r"\s+", "", lines[index + 1].text[:40]).lower()
    return any(0 <= (at := both.find(word)) < len(first) < at + len(word) for word in _WRAPPED)


def _length(lines: list[LogLine], index: int) -> int:
    """Lines from a failure's first to the last that may still be its text."""
    length = 1
    requested = "ried to allocate" in lines[index].text
    for line in lines[index + 1 : index + WINDOW]:
        again = "ried to allocate" in line.text
        if frame_of(line, "") is not None or "Traceback (most" in line.text or exception_of(line.text) is not None or (again and requested):
            break
        requested = requested or again
        if line.number > lines[index + length - 1].number + 3 or (line.stamp is not None and line.stamp != lines[index].stamp):
            break
        length += 1
    return length


def _trace_for(found: Sequence[Trace], lines: Sequence[LogLine], index: int, length: int) -> Trace | None:
    """The traceback that a failure's line closes, or else the one just above it."""
    closing = next((t for t in found if t.start <= index <= t.at < index + length or index <= t.at < index + length), None)
    if closing is not None:
        return closing
    open_ = next((t for t in found if t.exception is None and t.start <= index <= t.at), None)
    if open_ is not None and 0 <= lines[index].number - int(open_.frames[-1].where.rpartition(":")[2]) <= 3:
        return open_  # its last frame stands right above, and what closes it was not told as such
    above = [t for t in found if t.at < index and index - t.at <= 3 and t.exception is None]
    if above:
        return above[-1]
    return next((t for t in found if 0 <= t.start - index - length <= 2 and t.exception is None), None)  # some loggers print where after what


def _statement(lines: Sequence[LogLine], index: int, name: str) -> tuple[Frame, ...]:
    """The code line that stands directly above an error where the frame's own line was cut off."""
    if index == 0 or lines[index - 1].number != lines[index].number - 1 or exception_of(lines[index].text) is None:
        return ()
    text = lines[index - 1].text
    if not _STATEMENT.match(text) or len(text) > 400:
        return ()
    return (Frame(f"{name}:{lines[index - 1].number}", "", 0, "", text.strip()[:240], lines[index - 1].rank),)


def _failure(found: Found, line: LogLine, name: str, window: str, frames: tuple[Frame, ...]) -> Failure:
    sizes = found.sizes
    private = sizes.get("private_pool")
    allocated = sizes.get("allocated")
    unallocated = pytorch.reserved_unallocated(sizes)
    if dict(found.details).get("what") == "disk" and any(_SHARED.search(f.file) for f in frames):
        found = replace(found, kind="host-memory", details=(("what", "shared memory"), ("signal", 7)))
    decided = None if found.phase else phase_of(frames)
    details = found.details
    if decided is not None:
        if decided[0] == "loss":  # the loss is part of the model's forward pass; the finer word is kept beside it
            details += (("inside", "loss"),)
        details += (("phase_from", f"{decided[1].file}:{decided[1].function} ({decided[1].where})"),)
    tolerances = {key: size.tolerance for key, size in sizes.items()}
    if unallocated is not None:
        tolerances["reserved_unallocated"] = unallocated.tolerance
    return Failure(
        kind=found.kind,
        where=f"{name}:{line.number}",
        text=re.sub(r"\s+", " ", window).strip()[:1200],
        backend=found.backend,
        rank=line.rank if line.rank is not None else found.rank,
        gpu=found.gpu,
        requested_bytes=_bytes(sizes.get("requested")),
        capacity_bytes=_bytes(sizes.get("capacity")),
        free_bytes=_bytes(sizes.get("free")),
        # the text's figure includes what is free inside private pools (c10/cuda/CUDACachingAllocator.cpp: allocated_bytes + allocated_in_private_pools)
        allocated_bytes=None if allocated is None else max(allocated.bytes - (private.bytes if private else 0), 0),
        reserved_unallocated_bytes=_bytes(unallocated),
        private_pool_bytes=_bytes(private),
        allowed_bytes=_bytes(sizes.get("allowed")),
        processes=found.processes,
        tolerances=tuple(sorted(tolerances.items())),
        phase=found.phase or ((decided[0] if decided[0] != "loss" else "forward") if decided else None),
        frames=frames,
        consequence=found.consequence,
        details=details,
    )


def _bytes(size: Size | None) -> int | None:
    return None if size is None else size.bytes


def _joined(failures: list[Failure]) -> list[Failure]:
    """NCCL's own warning says what failed, torch's exception in which frames: one failure."""
    raised = next((f for f in failures if dict(f.details).get("what") == "nccl error" and f.frames), None)
    out: list[Failure] = []
    for failure in failures:
        what = dict(failure.details).get("what")
        if raised is not None and failure.kind == "collective" and what == "out of memory" and not failure.frames:
            failure = replace(failure, frames=raised.frames, rank=failure.rank if failure.rank is not None else raised.rank, phase=raised.phase)
            failure = replace(failure, details=failure.details + tuple(d for d in raised.details if d[0] == "phase_from"))
        out.append(failure)
    told = any(dict(f.details).get("what") == "out of memory" for f in out)
    return [f for f in out if not (told and dict(f.details).get("what") == "nccl error")]


_Key = tuple[object, ...]


def _with_its_rank(key: _Key, seen: Mapping[_Key, Failure], ranked: dict[_Key, _Key]) -> _Key:
    """The key under which the same counters are already there, where one of the two lines bears no rank; ``ranked``: keys by what is left without it."""
    if key[1] is None:
        return ranked.setdefault(key[:1] + key[2:], key)
    unlabelled = (*key[:1], None, *key[2:])
    if unlabelled in seen:
        return unlabelled
    ranked.setdefault(key[:1] + key[2:], key)
    return key


def _distinct(failures: list[Failure]) -> list[Failure]:
    """The same failure is often printed again (chained exceptions, launchers, loggers): the first with the most frames is kept."""
    out: dict[_Key, Failure] = {}
    ranked: dict[_Key, _Key] = {}
    for failure in failures:
        if failure.kind == "collective":  # NCCL repeats itself: warning, exception, last error
            told = dict(failure.details)
            same = ("collective", told.get("what"), told.get("exit_code"))
            if len(failure.frames) > len(out.setdefault(same, failure).frames):
                out[same] = replace(failure, where=out[same].where)
            continue
        key: tuple[object, ...] = (failure.kind, failure.rank, failure.requested_bytes, failure.free_bytes, failure.allocated_bytes, failure.gpu)
        if failure.requested_bytes is None:
            key += (re.sub(r"\d+", "", failure.text[:160]),)
        elif failure.allocated_bytes is not None:
            key = _with_its_rank(key, out, ranked)
        earlier = out.get(key)
        if earlier is None:
            out[key] = failure
        elif len(failure.frames) > len(earlier.frames):
            out[key] = replace(failure, where=earlier.where, rank=failure.rank if failure.rank is not None else earlier.rank)
    return list(out.values())
