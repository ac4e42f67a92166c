"""A text of any length, in a stream: which lines are worth keeping, cleaned, masked, with rank and time; memory stays bounded.

Lines that differ only in digits are one template. A template is looked at closely once; after that its lines cost a set look-up each:
those that matter (failures, frames, figures) are kept every time, progress is kept first and last, the rest is only counted.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from advisor.reading import prefixes
from advisor.reading.masking import mask

_DIGITS = b"0123456789"
MAX_LINE = 16_384  # characters of one line that are looked at
TEMPLATES = 30_000  # templates that are looked at closely; what comes after is only searched for failures
KEPT = 24_000  # lines kept of one text
EVERY = 12_000  # of these, lines whose every occurrence is kept
SERIES_FIRST, SERIES_LAST = 24, 40  # lines kept of a template that repeats with other figures
FOLLOW = 14  # lines after a failure or frame that are kept whatever they say: its code, its wrapped rest
TAIL = 120  # the last lines of a text, kept whatever they say

_EVERY = re.compile(
    r"out of memory|out_of_memory|oom[-_ ]?kill|tried to allocate|resource_?exhausted|alloc_failed|allocation failed|cannot allocate|can't allocate|"
    r"bad_alloc|memoryerror|"
    r"traceback \(most|^\s*file \"|^\s*(?:file )?/?[\w./<>~ -]{1,200}:\d+[,)]? in |cell in ?\[|input in ?\[|<ipython-input|^\S*(?:error|exception|"
    "interrupt)(?::|$)|"
    r"exitcode|exit code|return code|sigkill|sigterm|sigbus|sigabrt|signal \d|killed|nccl (?:warn|error)|nccl[a-z]*error|last error|cuda failure|"
    r"memory in use|of the allocated memory|total capac|process \d+ has|mib / |mib\s*\||^\s*\|\s+\d+\s+|see_memory_usage|max_ma |cuda error|cuda driver|"
    r"hip error|cublas|"
    r"cudnn_status|"
    r"available kv cache|kv cache memory|free memory on device|no available memory|watchdog|timed out|❱|direct cause of|during handling of",
    re.IGNORECASE,
)
_SERIES = re.compile(r"mem|alloc|reserved|[kmgt]i?b\b|\bstep|iter|epoch|loss|\bit/s|s/it|tokens|longest|length|batch|%\|", re.IGNORECASE)
_STRONG = (b"ut of memory", b"to allocate", b"raceback", b"rror:", b"xception", b"EXHAUSTED", b"ALLOC_FAILED", b"exitcode", b"SIG", b"illed", b"NCCL WARN")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A kept line. ``stream`` keeps interleaved writers apart; ``count``: lines of its template, where only some were kept."""

    number: int
    text: str
    rank: int | None = None
    stream: str = ""
    stamp: float | None = None
    count: int = 1
    wrapped: bool = False  # kept because of the line above it


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What was kept of one text, in its order."""

    name: str
    lines: tuple[LogLine, ...]
    total_lines: int
    size_bytes: int
    binary: bool = False
    cut: str | None = None  # why reading stopped early

    def where(self, line: LogLine | int) -> str:
        """``log.txt:120``."""
        return f"{self.name}:{line if isinstance(line, int) else line.number}"


@dataclass(slots=True)
class _Template:
    kind: int  # 0 once, 1 series, 2 every
    count: int = 1
    last: deque[tuple[int, bytes]] | None = None


@dataclass(slots=True)
class _Keeping:
    templates: dict[int, _Template] = field(default_factory=dict)
    kept: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)  # (line, part) -> raw, template
    every: int = 0
    follow: int = 0
    number: int = 0


def excerpt(name: str, chunks: Iterable[bytes]) -> Excerpt:
    """Read a text in chunks of bytes. UTF-8 is assumed; UTF-16 is recognised; what is no text at all is said to be binary."""
    state = _Keeping()
    size = 0
    tail: deque[tuple[int, bytes]] = deque(maxlen=TAIL)
    stream = _decoded(chunks)
    rest = b""
    first = True
    for chunk in stream:
        size += len(chunk)
        if first:
            first = False
            if is_binary(chunk):
                return Excerpt(name, (), 0, size, binary=True)
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        if len(rest) > 4 * MAX_LINE:
            parts.append(rest[: 4 * MAX_LINE])
            rest = b""
        _take(state, parts, tail)
    _take(state, [rest] if rest else [], tail)
    for number, raw in tail:
        state.kept.setdefault((number, 0), (raw, 0))
    for template in state.templates.values():
        for number, raw in template.last or ():
            state.kept.setdefault((number, 0), (raw, 0))
    return Excerpt(name, _cleaned(state), state.number, size)


def _take(state: _Keeping, parts: list[bytes], tail: deque[tuple[int, bytes]]) -> None:
    start = state.number
    if len(state.templates) >= TEMPLATES and not state.follow:
        joined = b"\n".join(parts)
        if not any(word in joined for word in _STRONG):
            state.number += len(parts)
            tail.extend((start + i + 1, raw[:MAX_LINE]) for i, raw in enumerate(parts[-TAIL:], max(len(parts) - TAIL, 0)))
            return
    templates, follow = state.templates, state.follow
    number = start
    for raw in parts:
        number += 1
        if b"\r" in raw:
            raw, follow = _returns(state, raw, number, follow)
        template = templates.get(hash(raw.translate(None, _DIGITS)))
        if template is not None and not follow:
            template.count += 1
            if template.kind == 0:
                continue
            if template.kind == 1:
                if template.last is None:
                    template.last = deque(maxlen=SERIES_LAST)
                if template.count <= SERIES_FIRST:
                    _keep(state, number, 0, raw)
                else:
                    template.last.append((number, raw[:MAX_LINE]))
                continue
        follow = _look(state, raw, number, 0, template, follow)
    state.number, state.follow = number, follow
    tail.extend((start + i + 1, raw.rstrip(b"\r")[:MAX_LINE]) for i, raw in enumerate(parts[-TAIL:], max(len(parts) - TAIL, 0)))


def _look(state: _Keeping, raw: bytes, number: int, part: int, template: _Template | None, follow: int) -> int:
    """Look at a line closely; returns how many of the next lines are kept whatever they say."""
    if not raw or raw.isspace():
        return max(follow - 1, 0)
    if template is None:
        text = raw[:2000].decode("utf-8", "replace")
        if len(state.templates) >= TEMPLATES and not _EVERY.search(text):
            if follow:
                _keep(state, number, part, raw)
            return max(follow - 1, 0)
        kind = _kind(text)
        template = state.templates[hash(raw.translate(None, _DIGITS))] = _Template(kind)
        _keep(state, number, part, raw)
        return FOLLOW if kind == 2 else max(follow - 1, 0)
    if template.kind == 2:
        state.every += 1
        if state.every <= EVERY:
            _keep(state, number, part, raw)
            return FOLLOW
        return 0
    _keep(state, number, part, raw)
    return max(follow - 1, 0)


def _kind(text: str) -> int:
    rest = prefixes.split(prefixes.strip_control(text)).text
    if _EVERY.search(rest):
        return 2
    return 1 if _SERIES.search(rest) and any(c.isdigit() for c in rest) else 0


def _returns(state: _Keeping, raw: bytes, number: int, follow: int) -> tuple[bytes, int]:
    """A line with carriage returns: a progress bar redrawn many times, then perhaps a traceback. Returns its last part."""
    pieces = [p for p in raw.split(b"\r") if p]
    if not pieces:
        return b"", follow
    for part, piece in enumerate(pieces[:-1], 1):
        template = state.templates.get(hash(piece.translate(None, _DIGITS)))
        if template is None or template.kind == 2:
            follow = _look(state, piece, number, -len(pieces) + part, template, follow)
        else:
            template.count += 1
            if template.kind == 1 and part >= len(pieces) - 2:
                _keep(state, number, -len(pieces) + part, piece)
    return pieces[-1], follow


def _keep(state: _Keeping, number: int, part: int, raw: bytes) -> None:
    if len(state.kept) < KEPT:
        state.kept[number, part] = raw[:MAX_LINE], hash(raw.translate(None, _DIGITS))


def _cleaned(state: _Keeping) -> tuple[LogLine, ...]:
    ordered = sorted(state.kept.items())
    decoded = [(number, prefixes.strip_control(_text(raw)), key) for (number, _), (raw, key) in ordered]
    labelled = _labelled([text for _, text, _ in decoded[:400]])
    seen: set[int] = set()
    out: list[LogLine] = []
    for number, text, key in decoded:
        prefix = prefixes.split(text, labelled=labelled)
        template = state.templates.get(key)
        count = 1
        if template is not None and key not in seen:
            seen.add(key)
            count = template.count
        out.append(LogLine(number, mask(prefix.text.rstrip()), prefix.rank, prefix.stream, prefix.stamp, count))
    return tuple(out)


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    if "Ã" in text or "â€" in text or "â”" in text:  # UTF-8 that was read as Latin-1 once
        try:
            return text.encode("cp1252").decode("utf-8")
        except UnicodeError:
            return text
    return text


def _labelled(texts: list[str]) -> bool:
    """Whether the lines bear ``srun --label`` numbers: nearly all of them, not only some."""
    hits = sum(1 for text in texts if re.match(r"\s{0,4}\d{1,5}: ?", text))
    return hits >= 4 and hits >= 0.8 * len(texts)


def is_binary(head: bytes) -> bool:
    """Whether the start of a file is no text: NUL bytes, or more control characters than text has."""
    sample = head[:4096]
    if not sample:
        return False
    control = sum(sample.count(bytes([c])) for c in (*range(7), *range(14, 27), 28, 29, 30, 31))
    return b"\0" in sample or control > 0.1 * len(sample)


def _decoded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, re-encoded as UTF-8 where they start with a UTF-16 or UTF-8 byte-order mark."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    for chunk in chunks:
        if first and chunk:
            first = False
            if chunk[:2] in (b"\xff\xfe", b"\xfe\xff") and chunk[:4] != b"\xff\xfe\0\0":
                decoder = codecs.getincrementaldecoder("utf-16")("replace")
            elif chunk[:3] == b"\xef\xbb\xbf":
                chunk = chunk[3:]
        yield decoder.decode(chunk).encode("utf-8", "replace") if decoder is not None else chunk
