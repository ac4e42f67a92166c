"""What was handed in, as a bounded list of texts: strings, bytes, files, folders, archives. Nothing is written to disk or followed.

Bounds: total bytes that are streamed, files of a folder, depth, an archive's entries, its expanded bytes and their ratio.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from advisor.reading import snapshot
from advisor.reading.masking import mask_name
from advisor.reading.safetensors import is_safetensors
from advisor.units import MIB, show

TOTAL = 256 * MIB  # bytes streamed of all texts together, on the command line
FILES = 2_000  # files of a folder or archive
DEPTH = 8  # folders below the one that was named
EXPANDED = 256 * MIB  # bytes that an archive may expand to
RATIO = 200  # expanded over packed bytes, where more than 8 MiB come out: text packs 5 to 30 fold
CHUNK = MIB

Item = tuple[str, bytes | str | Path]


@dataclass(frozen=True)
class Text:
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
        if not path.is_file() and not path.is_fifo() and not path.is_char_device():
            yield _problem(shown, "not a regular file")
            return
        with path.open("rb") as file:
            head = file.read(512) if path.is_file() else b""
    except OSError as error:
        yield _problem(shown, f"cannot be read: {error.strerror or type(error).__name__}")
        return
    if _archive(head):
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


def _archive(head: bytes) -> str | None:
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[257:262] == b"ustar":
        return "tar"
    if head[:6] == b"\xfd7zXZ\0" or head[:3] == b"BZh" or head[:4] == b"\x28\xb5\x2f\xfd":
        return "other"
    return None


def _bytes(name: str, data: bytes, depth: int) -> Iterator[Text]:
    kind = _archive(data)
    if kind is None:
        form = _kind(name, data[:512])
        whole = data if form != "text" else None
        yield Text(name, len(data), lambda: (data[i : i + CHUNK] for i in range(0, len(data), CHUNK)), kind=form, source=whole)
    elif kind == "other":
        yield _problem(name, "packed in a form that is not read (zip, tar and gz are)")
    elif depth >= 2:
        yield _problem(name, "an archive inside an archive inside an archive is not opened")
    elif kind == "zip":
        yield from _zip(name, data, depth)
    elif kind == "tar":
        yield from _tar(name, data, depth)
    else:
        expanded, why = _gunzip(data)
        if expanded is None:
            yield _problem(name, why)
        else:
            yield from _bytes(name.removesuffix(".gz"), expanded, depth + 1)


def _gunzip(data: bytes) -> tuple[bytes | None, str]:
    out = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while chunk := file.read(CHUNK):
                out += chunk
                if refused := _too_large(len(out), len(data)):
                    return None, refused
    except (OSError, EOFError, zlib.error) as error:
        if not out:
            return None, f"a gzip file that cannot be unpacked: {error}"
    return bytes(out), ""


def _too_large(expanded: int, packed: int) -> str | None:
    if expanded > EXPANDED:
        return f"refused: it expands to more than {show(EXPANDED)}"
    if expanded > 8 * MIB and expanded > RATIO * max(packed, 1):
        return f"refused: it expands more than {RATIO} fold, as an archive made to exhaust memory does"
    return None


_REFUSED = "{} of its entries were refused: links, encrypted ones, and names that lead out of the archive are never read"


def _safe(name: str) -> bool:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return bool(parts) and not name.startswith(("/", "\\")) and ".." not in parts and ":" not in parts[0] and len(parts) <= DEPTH + 2


def _zip(name: str, data: bytes, depth: int) -> Iterator[Text]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > FILES:
                yield _problem(name, f"{len(entries):,} entries; at most {FILES:,} are read")
                return
            total, refused_names = 0, 0
            for entry in entries:
                link = (entry.external_attr >> 16) & 0o170000 == 0o120000
                if entry.is_dir():
                    continue
                if link or not _safe(entry.filename) or entry.flag_bits & 0x1:
                    refused_names += 1
                    continue
                if refused := _too_large(total + entry.file_size, len(data)):
                    yield _problem(name, refused)
                    return
                with archive.open(entry) as file:
                    content = file.read(min(entry.file_size, EXPANDED - total) + 1)
                total += len(content)
                if refused := _too_large(total, len(data)):
                    yield _problem(name, refused)
                    return
                yield from _bytes(mask_path(PurePosixPath(entry.filename)), content, depth + 1)
            if refused_names:
                yield _problem(name, _REFUSED.format(refused_names))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, zlib.error, ValueError) as error:
        yield _problem(name, f"a zip archive that cannot be unpacked: {str(error)[:120]}")


def _tar(name: str, data: bytes, depth: int) -> Iterator[Text]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            total, refused_names = 0, 0
            for count, entry in enumerate(archive):
                if count >= FILES:
                    yield _problem(name, f"more than {FILES:,} entries; the rest was not read")
                    return
                if entry.isdir():
                    continue
                if not entry.isreg() or not _safe(entry.name):
                    refused_names += 1
                    continue
                total += entry.size
                if refused := _too_large(total, len(data)):
                    yield _problem(name, refused)
                    return
                file = archive.extractfile(entry)
                if file is not None:
                    yield from _bytes(mask_path(PurePosixPath(entry.name)), file.read(entry.size), depth + 1)
            if refused_names:
                yield _problem(name, _REFUSED.format(refused_names))
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        yield _problem(name, f"a tar archive that cannot be unpacked: {str(error)[:120]}")


def _first(chunks: Callable[[], Iterator[bytes]], limit: int) -> Iterator[bytes]:
    for chunk in chunks():
        if limit <= 0:
            return
        yield chunk[:limit]
        limit -= len(chunk)
