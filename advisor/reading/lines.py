"""A text of any length, in a stream: which lines are worth keeping, cleaned, masked, with rank and time; memory stays bounded.

Lines that differ only in digits are one template. A template is looked at closely once; after that its lines cost a set look-up each:
those that matter (failures, frames, figures) are kept every time, progress is kept first and last, the rest is only counted.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from advisor.reading import characters, margins, prefixes, unwrapping
from advisor.reading.decoding import as_text, decoded, is_binary, is_labelled, shortened
from advisor.reading.masking import mask
from advisor.reading.pattern import pattern as lazily

_DIGITS = b"0123456789"
MAX_LINE = 16_384  # characters of one line that are looked at
TEMPLATES = 8_000  # templates that are looked at closely; what is new after that is only searched for failures
KEPT = 16_000  # lines kept of one text for what they say of the run
EVERY = 12_000  # further lines kept because they are part of a failure
SERIES_FIRST, SERIES_LAST = 24, 40  # lines kept of a template that repeats with other figures
FOLLOW = 14  # lines after a failure or frame that are kept whatever they say: its code, its wrapped rest
TAIL = 120  # the last lines of a text, kept whatever they say

_EVERY = lazily(
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
_SERIES = ("mem", "alloc", "reserved", "gib", "mib", "gb", "mb", "step", "iter", "epoch", "loss", "it/s", "s/it", "token", "longest", "length", "batch", "%|")
_DIGIT = lazily(r"\d")
_EVERY_WORDS = (  # one of these is in every line that _EVERY finds: a cheap test before it
    "memory", "oom", "alloc", "exhausted", "traceback", 'file "', ".py",
    "cell in", "input in", "ipython-input", "error", "exception", "interrupt", "exit", "return code", "sig", "kill",
    "nccl", "cuda", "capac", "process", "mib", "| ", "ma ", "hip", "cublas", "cudnn", "watchdog", "timed", "❱", "direct cause", "during handling", ">:",
)  # fmt: skip
_STRONG = (b"ut of memory", b"raceback (", b"rror: ", b"EXHAUSTED", b"SIGKILL", b"exitcode")


class LogLine(Struct, frozen=True):
    """A kept line. ``stream`` keeps interleaved writers apart; ``count``: lines of its template, where only some were kept."""

    number: int
    text: str
    rank: int | None = None
    stream: str = ""
    stamp: float | None = None
    count: int = 1
    wrapped: bool = False  # kept because of the line above it


class Excerpt(Struct, frozen=True):
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


class _Template(Struct):
    kind: int  # 0 once, 1 series, 2 every
    count: int = 1
    last: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=SERIES_LAST))


class _Keeping(Struct):
    templates: dict[int, _Template] = field(default_factory=dict)
    kept: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (line, part of a line with carriage returns)
    ordinary: int = 0
    every: int = 0
    follow: int = 0
    number: int = 0


def excerpt(name: str, chunks: Iterable[bytes]) -> Excerpt:
    """Read a text in chunks of bytes. UTF-8 is assumed; UTF-16 is recognised; what is no text at all is said to be binary."""
    state = _Keeping()
    size = 0
    tail: deque[tuple[int, bytes]] = deque(maxlen=TAIL)
    rest = b""
    for chunk in decoded(chunks):
        if not size and is_binary(chunk):
            return Excerpt(name, (), 0, len(chunk), binary=True)
        size += len(chunk)
        block = rest + chunk if rest else chunk
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        if len(rest) > 4 * MAX_LINE:  # a line without end: its start is looked at
            block, rest, end = block[:end] + rest[:MAX_LINE] + b"\n", b"", -1
        if end:
            _take(state, block[:end] if end > 0 else block, tail)
    if rest:
        _take(state, rest + b"\n", tail)
    for number, raw in tail:
        state.kept.setdefault((number, 0), raw)
    for template in state.templates.values():
        for number, raw in template.last:
            state.kept.setdefault((number, 0), raw)
    return Excerpt(name, _cleaned(state), state.number, size)


def _take(state: _Keeping, block: bytes, tail: deque[tuple[int, bytes]]) -> None:
    """Whole lines. The digits are taken off all of them at once, so that a known template costs a look-up a line."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    returns = b"\r" in block
    lines = block.split(b"\n")
    lines.pop()
    keys = map(hash, block.translate(None, _DIGITS).split(b"\n"))
    hits = _hits(block) if len(state.templates) >= TEMPLATES else None
    known, follow, number = state.templates.get, state.follow, state.number
    first = number
    for raw, key in zip(lines, keys, strict=False):
        number += 1
        template = known(key)
        if template is not None and not follow:
            template.count += 1
            kind = template.kind
            if kind == 0:
                continue
            if kind == 1:
                if template.count > SERIES_FIRST:
                    template.last.append((number, raw))
                else:
                    _keep(state, number, 0, raw, False)
                continue
        elif template is None and hits is not None and not follow and number - first - 1 not in hits:
            continue
        if returns and b"\r" in raw:
            follow = _redrawn(state, raw, number, follow)
        else:
            follow = _look(state, raw, number, 0, key, follow)
    state.number, state.follow = number, follow
    tail.extend((number - len(lines[-TAIL:]) + 1 + i, raw[-MAX_LINE:]) for i, raw in enumerate(lines[-TAIL:]))


def _hits(block: bytes) -> frozenset[int]:
    """Indices of the lines of a block that bear a failure's words."""
    found: set[int] = set()
    for word in _STRONG:
        at, line, before = block.find(word), 0, 0
        while at >= 0 and len(found) < EVERY:
            line += block.count(b"\n", before, at)
            found.add(line)
            before, at = at, block.find(word, at + len(word))
    return frozenset(found)


def _look(state: _Keeping, raw: bytes, number: int, part: int, key: int, follow: int) -> int:
    """Look at a line closely; returns how many of the next lines are kept whatever they say."""
    if not raw or raw.isspace():
        return max(follow - 1, 0)
    template = state.templates.get(key)
    if template is None:
        kind = _kind(raw[:2000].decode("utf-8", "replace"))
        if len(state.templates) < TEMPLATES or (kind == 2 and len(state.templates) < 2 * TEMPLATES):
            state.templates[key] = _Template(kind)
    else:
        kind = template.kind
    _keep(state, number, part, raw, kind == 2 or follow > 0)
    return FOLLOW if kind == 2 else max(follow - 1, 0)


def _kind(text: str) -> int:
    lowered = text.lower()
    if any(word in lowered for word in _EVERY_WORDS) and _EVERY.search(prefixes.split(prefixes.strip_control(text)).text):
        return 2
    return 1 if any(word in lowered for word in _SERIES) and _DIGIT.search(text) is not None else 0


def _redrawn(state: _Keeping, raw: bytes, number: int, follow: int) -> int:
    """A line with carriage returns: a progress bar redrawn many times, then perhaps a traceback."""
    pieces = [piece for piece in raw.split(b"\r") if piece]
    for part, piece in enumerate(pieces, 1 - len(pieces)):
        key = hash(piece.translate(None, _DIGITS))
        template = state.templates.get(key)
        if template is None or template.kind == 2 or part == 0:
            follow = _look(state, piece, number, part, key, follow)
        else:
            template.count += 1
    return follow


def _keep(state: _Keeping, number: int, part: int, raw: bytes, failing: bool) -> None:
    if failing:
        state.every += 1
        if state.every <= EVERY:
            state.kept[number, part] = raw[:MAX_LINE]
    else:
        state.ordinary += 1
        if state.ordinary <= KEPT:
            state.kept[number, part] = raw[:MAX_LINE]


def _cleaned(state: _Keeping) -> tuple[LogLine, ...]:
    ordered = sorted(state.kept.items())
    cleaned = unwrapping.joined(
        [
            (number, piece, hash(raw.translate(None, _DIGITS)))
            for (number, _), raw in ordered
            for piece in characters.broken(shortened(prefixes.strip_control(characters.message(characters.plain(as_text(raw))))))
        ]
    )
    numbered = is_labelled([text for _, text, _ in cleaned[:400]])
    seen: set[int] = set()
    out: list[LogLine] = []
    quoting = False
    parted: list[prefixes.Prefix] = []
    for text in margins.shifted([text for _, text, _ in cleaned]):
        said, quoting = prefixes.unquoted(text, quoting)
        parted.append(prefixes.split(said, labelled=numbered))
    for (number, _, key), prefix in zip(cleaned, margins.without(parted), strict=True):
        template = state.templates.get(key)
        count = 1
        if template is not None and key not in seen:
            seen.add(key)
            count = template.count
        out.append(LogLine(number, mask(prefix.text.rstrip()), prefix.rank, prefix.stream, prefix.stamp, count))
    return tuple(out)
