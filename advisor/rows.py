"""The rows of a data set on disk: JSON lines, JSON lists, parquet, arrow, CSV, plain text, and what ``datasets`` saves. One at a time; nothing is executed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

MAX_LINE = 64 * 1024 * 1024
MAX_ROWS = 200_000_000  # of all files together, and seconds: what lies beyond is no matter of a minute or two any more
MAX_SECONDS = 1800.0
MAX_COLUMNS_BYTES = 256 << 30  # unpacked, as a parquet file says of itself
BATCH_ROWS, MAX_BATCH = 1024, 512 * 1024 * 1024  # rows that are unpacked at a time, and their bytes
MAX_ABOUT = 16 * 1024 * 1024
HEAD = 4096  # bytes by which text is told from what is none
# what datasets 5.2 (config.py) writes beside the data; a map's results are in cache-*.arrow
_ABOUT = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})


class LengthsError(ValueError):
    """Data that can not be read; the message says what was found and which forms are read."""


def rows(path: Path) -> Iterator[Any]:
    """The rows of a file or a folder, in the order in which a loader numbers them.

    Raises:
        LengthsError: a file in it is not what its name says, or there is more than is read.
    """
    ends, number = time.monotonic() + MAX_SECONDS, 0
    for file in files(path) if path.is_dir() else [path]:
        for row in _READERS.get(file.suffix.lower(), _plain)(file):
            number += 1
            if number > MAX_ROWS or (number % BATCH_ROWS == 0 and time.monotonic() > ends):
                why = f"more than {MAX_ROWS:,} rows" if number > MAX_ROWS else f"more than {MAX_SECONDS / 60:.0f} minutes of reading ({number:,} rows)"
                raise LengthsError(f"{path.name} holds {why}; give some of its files, or a part of it")
            yield row


def files(folder: Path) -> list[Path]:
    """The data files of a folder: of a data set that ``save_to_disk`` wrote, those that its state names; else all of a known form, by name.

    Of a ``DatasetDict`` only the training split is trained on: ``train``, else the first that is named.
    """
    splits, state = _about(folder / "dataset_dict.json").get("splits"), _about(folder / "state.json").get("_data_files")
    if isinstance(splits, list) and splits:
        named = "train" if "train" in splits else str(splits[0])
        if Path(named).name == named and (folder / named).is_dir():
            return files(folder / named)
    if isinstance(state, list):
        names = [str(entry.get("filename")) for entry in state if isinstance(entry, dict)]
        return [folder / name for name in names if Path(name).name == name and is_readable(Path(name))]
    return sorted(f for f in folder.rglob("*") if f.is_file() and is_readable(f) and f.name not in _ABOUT and not f.name.startswith((".", "cache-")))


def is_readable(path: Path) -> bool:
    """Whether a file's name says that it holds rows."""
    return path.suffix.lower() in _READERS


def _about(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes()[:MAX_ABOUT])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as handle:
        number = 0
        while line := handle.readline(MAX_LINE):
            number += 1
            if line.strip():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    raise LengthsError(f"{path.name} line {number} is no JSON; one object a line is read") from None


def _json(path: Path) -> Iterator[Any]:
    with path.open("rb") as handle:
        start = handle.read(1)
        while start and start.isspace():
            start = handle.read(1)
    if start != b"[":
        yield from _json_lines(path)
        return
    if path.stat().st_size > 1 << 30:
        raise LengthsError(f"{path.name} is one JSON list above 1 GiB; write it as JSON lines")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise LengthsError(f"{path.name} is no JSON list: {error}") from None
    yield from found


def _plain(path: Path) -> Iterator[Any]:
    with path.open("rb") as handle:
        if (what := _no_text(path.name, handle.read(HEAD))) is not None:
            raise LengthsError(f"{path.name} is {what}, not a data set; give JSON lines, parquet, arrow, CSV or plain text")
        handle.seek(0)
        number = 0
        while line := handle.readline(MAX_LINE):
            number += 1
            if b"\0" in line:
                raise LengthsError(f"{path.name} line {number} is no text (it holds a zero byte); give JSON lines, parquet, arrow, CSV or plain text")
            if line.strip():
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")


def _csv(path: Path) -> Iterator[Any]:
    from advisor.csv_rows import table

    with path.open("rb") as handle:
        if (what := _no_text(path.name, handle.read(HEAD))) is not None:
            raise LengthsError(f"{path.name} is {what}, not a table in text; give JSON lines, parquet, arrow, CSV or plain text")
    yield from table(path)


def _no_text(name: str, head: bytes) -> str | None:
    """What a file is instead of lines of text, by its first bytes; ``None``: it may be text, of whatever 8-bit encoding."""
    from advisor.reading import archives, snapshot  # loaded only for what no known name announces

    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "text in UTF-16 (convert it to UTF-8)"
    if archives.kind(head) is not None:
        return "packed (unpack it first)"
    if snapshot.is_pickle(name, head):
        return "a pickle (which is never opened: it can run code)"
    if head.startswith((b"PAR1", b"ARROW1")):
        return f"{'parquet' if head.startswith(b'PAR1') else 'arrow'} under another name (rename it)"
    control = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    return "binary" if b"\0" in head or head.startswith(b"%PDF-") or control > len(head) // 50 else None


def _parquet(path: Path) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")  # loaded only for this form
    try:
        file = parquet.ParquetFile(path)
    except _refusals() as error:
        raise LengthsError(f"{path.name} is no parquet file: {str(error).splitlines()[0]}") from None
    about = file.metadata
    unpacked = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if about.num_rows > MAX_ROWS or unpacked > MAX_COLUMNS_BYTES:
        raise LengthsError(
            f"{path.name} says that it holds {about.num_rows:,} rows, {unpacked >> 30:,} GiB unpacked; up to {MAX_ROWS:,} rows and "
            f"{MAX_COLUMNS_BYTES >> 30} GiB are read. Give a part of it"
        )
    yield from _batches(path, file.iter_batches(batch_size=BATCH_ROWS))


def _arrow(path: Path) -> Iterator[Any]:
    pyarrow = import_module("pyarrow")
    with pyarrow.memory_map(str(path)) as source:
        try:
            stream = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:  # the format for random access
            try:
                whole = pyarrow.ipc.open_file(source)
            except pyarrow.ArrowInvalid as error:
                raise LengthsError(f"{path.name} is no arrow file: {str(error).splitlines()[0]}") from None
            stream = (whole.get_batch(number) for number in range(whole.num_record_batches))
        yield from _batches(path, stream)


def _refusals() -> tuple[type[Exception], ...]:
    """What arrow raises over a file that is damaged, uses what it does not know, or asks for more memory than there is."""
    return (ValueError, OSError, NotImplementedError, import_module("pyarrow").ArrowException)


def _batches(path: Path, batches: Iterable[Any]) -> Iterator[Any]:
    try:
        for whole in batches:  # an arrow file's batches are as large as its writer made them
            for start in range(0, whole.num_rows, BATCH_ROWS):
                batch = whole.slice(start, BATCH_ROWS)
                if batch.nbytes > MAX_BATCH:
                    size = f"{batch.nbytes >> 20:,} MiB in {batch.num_rows:,} rows; up to {MAX_BATCH >> 20} MiB are unpacked at a time"
                    raise LengthsError(f"{path.name} holds {size}. Leave out the columns that are no text or tokens")
                yield from batch.to_pylist()
    except LengthsError:
        raise
    except _refusals() as error:
        raise LengthsError(f"{path.name} can not be read: {str(error).splitlines()[0]}") from None


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".parquet": _parquet, ".arrow": _arrow, ".txt": _plain,
    ".csv": _csv, ".tsv": _csv,
}  # fmt: skip
