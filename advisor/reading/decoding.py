"""Bytes of a text as text: encodings, runs of one character, labels of a launcher, and whether it is a text at all."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from advisor.reading.pattern import pattern as lazily

_RUN = lazily(r"(.)\1{119,}")
LONG, LONGEST_RUN = 400, 120  # characters


def as_text(raw: bytes) -> str:
    """A line as text; what was read as Latin-1 once comes back as UTF-8."""
    text = raw.decode("utf-8", "replace")
    if "Ã" in text or "â€" in text or "â”" in text:  # UTF-8 that was read as Latin-1 once
        try:
            return text.encode("cp1252").decode("utf-8")
        except UnicodeError:
            return text
    return text


def shortened(text: str) -> str:
    """A long line with its runs of one character cut: a thousand spaces say no more than a hundred, and cost patterns far more."""
    return _RUN.sub(lambda m: m[0][:LONGEST_RUN], text) if len(text) > LONG else text


def is_labelled(texts: list[str]) -> bool:
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


def decoded(chunks: Iterable[bytes]) -> Iterator[bytes]:
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
