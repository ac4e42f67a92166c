"""What was handed in, as a bounded list of texts: strings, bytes, files, folders, archives. Nothing is written to disk or followed.

Bounds: total bytes that are streamed, files of a folder, depth; those of archives are in :mod:`advisor.reading.archives`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from advisor.opening import can_be_opened
from advisor.reading import archives, snapshot
from advisor.reading.archives import DEPTH, FILES
from advisor.reading.masking import mask_name
from advisor.reading.safetensors import is_safetensors
from advisor.units import MIB, show

TOTAL = 256 * MIB  # bytes streamed of all texts together, on the command line
CHUNK = MIB

Item = tuple[str, bytes | str | Path]


class Text(Struct, frozen=True):
    """One text: its masked name, its size where known, and a way to stream it. Of what is no text, ``source`` is the whole, unbounded."""

    name: str
    size_bytes: int
    chunks: Callable[[], Iterator[bytes]]
    problem: str | None = None
    kind: Literal["text", "pickle", "safetensors"] = "text"
    source: Path | bytes | None = None


def texts(items: Sequence[Item]) -> Iterator[Text]:
    """The texts of what was handed in, in order, names made distinct."""
    left = TOTAL
    names: dict[str, int] = {}
    for name, content in items:
        for text in _of(name, content, 0):
            bounded = text
            if text.kind != "text":  # read by its own bounds, in part or elsewhere
                yield replace(text, name=_distinct(text.name, names))
                continue
            if text.size_bytes > left:
                note = f"only its first {show(left)} were read" if left else f"not read: at most {show(TOTAL)} of all texts together are"
                bounded = replace(text, size_bytes=left, chunks=partial(_first, text.chunks, left), problem=note)
            left -= bounded.size_bytes
            yield replace(bounded, name=_distinct(text.name, names))


def _distinct(name: str, names: dict[str, int]) -> str:
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}#{names[name]}"


def _of(name: str, content: bytes | str | Path, depth: int) -> Iterator[Text]:
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    if isinstance(content, bytes):
        yield from _bytes(mask_name(name), content, depth)
    else:
        yield from _path(name, content)


def _path(name: str, path: Path) -> Iterator[Text]:
    shown = mask_name(name or path.name)
    try:
        if path.is_dir():
            yield from _folder(path)
            return
        size = path.stat().st_size
        if not can_be_opened(path):
            yield _problem(shown, "not a regular file")
            return
        with path.open("rb") as file:
            head = file.read(512) if path.is_file() else b""
    except OSError as error:
        yield _problem(shown, f"cannot be read: {error.strerror or type(error).__name__}")
        return
    if archives.kind(head):
        if size > TOTAL:
            yield _problem(shown, f"an archive of {show(size)}; at most {show(TOTAL)} are read")
        else:
            yield from _bytes(shown, path.read_bytes(), 0)
        return
    kind = _kind(path.name, head)
    yield Text(shown, size, lambda: _file_chunks(path), kind=kind, source=path if kind != "text" else None)


def _kind(name: str, head: bytes) -> Literal["text", "pickle", "safetensors"]:
    if snapshot.is_pickle(name, head):
        return "pickle"
    return "safetensors" if is_safetensors(name, head) else "text"


def _file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _folder(root: Path) -> Iterator[Text]:
    count = 0
    for folder, below, files in os.walk(root, followlinks=False):
        relative = Path(folder).relative_to(root)
        below[:] = sorted(d for d in below if not d.startswith(".") and d not in ("node_modules", "__pycache__")) if len(relative.parts) < DEPTH else []
        for file in sorted(files):
            path = Path(folder) / file
            if path.is_symlink() or file.startswith("."):
                continue
            count += 1
            if count > FILES:
                yield _problem(mask_name(root.name), f"more than {FILES} files; the rest was not read")
                return
            for text in _path(file, path):
                yield replace(text, name=mask_path(relative / file) if text.name == mask_name(file) else text.name)


def mask_path(path: Path | PurePosixPath) -> str:
    """A path inside a folder or archive, masked part by part."""
    return "/".join(mask_name(part) for part in path.parts)[:200]


def _problem(name: str, why: str) -> Text:
    return Text(name, 0, lambda: iter(()), why)


def _bytes(name: str, data: bytes, depth: int) -> Iterator[Text]:
    kind = archives.kind(data)
    if kind is None:
        form = _kind(name, data[:512])
        whole = data if form != "text" else None
        yield Text(name, len(data), lambda: (data[i : i + CHUNK] for i in range(0, len(data), CHUNK)), kind=form, source=whole)
    elif depth >= 2:
        yield _problem(name, "an archive inside an archive inside an archive is not opened")
    else:
        for found in archives.entries(kind, data):
            if isinstance(found, str):
                yield _problem(name, found)
            else:
                within = name.removesuffix(".gz") if found.path is None else mask_path(found.path)
                yield from _bytes(within, found.content, depth + 1)


def _first(chunks: Callable[[], Iterator[bytes]], limit: int) -> Iterator[bytes]:
    for chunk in chunks():
        if limit <= 0:
            return
        yield chunk[:limit]
        limit -= len(chunk)
