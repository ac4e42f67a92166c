"""Archives (zip, tar, gz) unpacked in memory within bounds: entries, their expanded bytes, the ratio to the packed ones. Nothing is written to disk.

Links, encrypted entries and names that lead out of the archive are never read.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from msgspec import Struct

from advisor.units import MIB, show

FILES = 2_000  # files of a folder or archive
DEPTH = 8  # folders below the one that was named
EXPANDED = 256 * MIB  # bytes that an archive may expand to
RATIO = 200  # expanded over packed bytes, where more than 8 MiB come out: text packs 5 to 30 fold
_CHUNK = MIB


class Entry(Struct, frozen=True):
    """One file of an archive; ``path`` is ``None`` where the archive is one packed file (gz)."""

    content: bytes
    path: PurePosixPath | None = None


def kind(head: bytes) -> str | None:
    """How a file is packed, by its first bytes: zip, gzip, tar, other (a form that is not read); ``None``: it is no archive."""
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[257:262] == b"ustar":
        return "tar"
    if head[:6] == b"\xfd7zXZ\0" or head[:3] == b"BZh" or head[:4] == b"\x28\xb5\x2f\xfd":
        return "other"
    return None


def entries(form: str, data: bytes) -> Iterator[Entry | str]:
    """The files of an archive of that :func:`kind`, in order; a sentence where something of it was refused or cannot be unpacked."""
    if form == "zip":
        yield from _zip(data)
    elif form == "tar":
        yield from _tar(data)
    elif form == "gzip":
        expanded, why = _gunzip(data)
        if expanded is not None:
            yield Entry(expanded)
        if why:
            yield why
    else:
        yield "packed in a form that is not read (zip, tar and gz are)"


def _gunzip(data: bytes) -> tuple[bytes | None, str]:
    out = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while chunk := file.read(_CHUNK):
                out += chunk
                if refused := _too_large(len(out), len(data)):
                    return None, refused
    except (OSError, EOFError, zlib.error) as error:
        if not out:
            return None, f"a gzip file that cannot be unpacked: {error}"
        return bytes(out), f"a gzip file that breaks off ({error}): its first {show(len(out))} were read"
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


def _zip(data: bytes) -> Iterator[Entry | str]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > FILES:
                yield f"{len(entries):,} entries; at most {FILES:,} are read"
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
                    yield refused
                    return
                with archive.open(entry) as file:
                    content = file.read(min(entry.file_size, EXPANDED - total) + 1)
                total += len(content)
                if refused := _too_large(total, len(data)):
                    yield refused
                    return
                yield Entry(content, PurePosixPath(entry.filename))
            if refused_names:
                yield _REFUSED.format(refused_names)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        yield f"a zip archive that cannot be unpacked: {str(error)[:120]}"


def _tar(data: bytes) -> Iterator[Entry | str]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            total, refused_names = 0, 0
            for count, entry in enumerate(archive):
                if count >= FILES:
                    yield f"more than {FILES:,} entries; the rest was not read"
                    return
                if entry.isdir():
                    continue
                if not entry.isreg() or not _safe(entry.name):
                    refused_names += 1
                    continue
                total += entry.size
                if refused := _too_large(total, len(data)):
                    yield refused
                    return
                file = archive.extractfile(entry)
                if file is not None:
                    yield Entry(file.read(entry.size), PurePosixPath(entry.name))
            if refused_names:
                yield _REFUSED.format(refused_names)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        yield f"a tar archive that cannot be unpacked: {str(error)[:120]}"
