"""Inputs for fuzzing: real texts cut, doubled, crossed and spoiled, and structures made to do harm. Everything follows from a seed."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import zipfile
from functools import cache
from pathlib import Path

from reading.failure_texts import VERSIONS
from reading.snapshot.building import dumped, snapshot, training_step

CASES = Path(__file__).parents[1] / "cases"
LINKS = Path(__file__).parents[1] / "links.txt"
Item = tuple[str, bytes]

TOKENS = (
    "\0", "\r", "\r\n", "\n\n\n", "\t", " ", "\u2028", "\ufeff", "\U0001f4a5", "é", "\x1b[31m", "\x1b[0m", "\x1b]8;;", "&a *a", "<<: *a",
    "!!python/object/apply:os.system", "${", "}", "{", "[" * 50, "(" * 50, '"', "'", '"""', "\\", "\\\n", "--", "=", ":", ": ", "- ", "#", "%", "1e999", "-1",
    "0", "NaN", "99999999999999999999", "0x", "1_000", "GiB", " MiB", "[rank3]: ", "(WorkerDict pid=12) ", "Traceback (most recent call last):\n",
    '  File "a.py", line 1, in f\n', "RuntimeError: ", "None", "true", "null", "auto", "per_device_train_batch_size", "Tried to allocate ", "| 0  A100 |",
    "a" * 300, "1" * 60, "| " * 60, "Process 1 has ", "\n  ", "lambda: ", "def f(", "for i in ", "@", "$(", "`", "EOF",
)  # fmt: skip


@cache
def texts(*endings: str) -> tuple[Item, ...]:
    """Inputs of the reported cases with these endings, and failure texts; at most 20,000 bytes of each."""
    found = [(p.name, p.read_bytes()[:20_000]) for p in sorted(CASES.glob("*/input/*")) if p.name.endswith(endings)]
    if ".txt" in endings:
        found += [("error.txt", text.encode()) for text in VERSIONS.values()]
    return tuple(found)


def mutated(dice: random.Random, data: bytes) -> bytes:
    """A few spoilings: cut, doubled, replaced, bytes changed, tokens put in."""
    out = bytearray(data)
    for _ in range(dice.randrange(1, 8)):
        at = dice.randrange(len(out) + 1)
        length = dice.choice((1, 2, 5, 20, 200, 2000))
        match dice.randrange(7):
            case 0:
                del out[at : at + length]
            case 1:
                out[at:at] = out[at : at + length] * dice.choice((1, 2, 20))
            case 2:
                out[at:at] = dice.choice(TOKENS).encode("utf-8", "replace") * dice.choice((1, 1, 3, 100))
            case 3 if out:
                out[min(at, len(out) - 1)] = dice.randrange(256)
            case 4:
                out[at : at + length] = dice.randbytes(dice.randrange(1, 9))
            case 5:
                other = dice.randrange(len(out) + 1)
                out[at : at + length] = out[other : other + length]
            case _:
                out = out[at:] if dice.random() < 0.2 else out
        del out[60_000:]
    return bytes(out)


def text(dice: random.Random) -> Item:
    name, data = dice.choice(texts(".txt", ".log"))
    if dice.random() < 0.3:
        data += dice.choice(texts(".txt", ".log"))[1]
    return name, mutated(dice, data)


def yaml(dice: random.Random) -> Item:
    name, data = dice.choice(texts(".yaml", ".yml"))
    if dice.random() < 0.05:
        levels = dice.randrange(2, 12)
        data = "\n".join(["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]).encode()
    return name, mutated(dice, data)


def json_(dice: random.Random) -> Item:
    name, data = dice.choice(texts(".json"))
    if dice.random() < 0.05:
        depth = dice.choice((10, 1000, 30_000))
        data = b'{"a":' * depth if dice.random() < 0.5 else b"[" * depth + b"]" * depth
    return name, mutated(dice, data)


def python(dice: random.Random) -> Item:
    name, data = dice.choice(texts(".py"))
    if dice.random() < 0.05:
        depth = dice.choice((10, 200, 5000))
        data = b"x = " + b"(" * depth + b"1" + b")" * depth if dice.random() < 0.5 else b"x = " + b"-" * depth + b"1"
    return name, mutated(dice, data)


def shell(dice: random.Random) -> Item:
    name, data = dice.choice(texts(".sh"))
    return name, mutated(dice, data)


def notebook(dice: random.Random) -> Item:
    cells = []
    for _ in range(dice.randrange(1, 5)):
        source = dice.choice(texts(".py"))[1].decode("utf-8", "replace")
        output = dice.choice(texts(".txt"))[1].decode("utf-8", "replace")[:3000]
        cells.append({"cell_type": "code", "source": source.splitlines(True), "outputs": [{"output_type": "stream", "text": output.splitlines(True)}]})
    data = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
    return "train.ipynb", mutated(dice, data)


OPCODES = (
    *(bytes([op]) for op in b"()]}l0du\x85\x86\x87\x94eaNst\x88"), b"h\x00", b"q\x01", b"K\x05", b"M\x01\x02", b"J\x01\x02\x03\x04", b"\x8c\x01a",
    b"X\x01\x00\x00\x00b", b"\x8a\x01\x05", b"G" + b"\x00" * 8, b"\x8c\x08segments", b"\x8c\rdevice_traces",
)  # fmt: skip


@cache
def _pickles() -> tuple[bytes, ...]:
    made = [dumped(snapshot(training_step(), version=v), p) for v in ("2.0", "2.1", "now") for p in (0, 2, 4)]
    return (*made, b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", b"cos\nsystem\n(S'id'\ntR.", pickle.dumps([{}] * 40))


def pickled(dice: random.Random) -> Item:
    """Snapshots with opcodes changed, and opcodes at random."""
    if dice.random() < 0.3:
        return "s.pickle", b"\x80\x04" + b"".join(dice.choice(OPCODES) for _ in range(dice.randrange(80))) + b"."
    data = bytearray(dice.choice(_pickles()))
    for _ in range(dice.randrange(1, 6)):
        data[dice.randrange(2, len(data))] = dice.choice((dice.randrange(256), *b"cRbio\x81\x82\x93PQXTBrj(.)]}"))
    return "s.pickle", bytes(data)


def summary(dice: random.Random) -> Item:
    from advisor.reading.snapshot.summary import summarise

    return "s.json", _spoiled(dice, summarise(snapshot(training_step())))


def snapshot_json(dice: random.Random) -> Item:
    return "s.json", _spoiled(dice, snapshot(training_step()))


def _spoiled(dice: random.Random, value: object) -> bytes:
    """A JSON structure with some of its values replaced by others of any type."""

    def walk(node: object) -> object:
        if dice.random() < 0.01:
            return dice.choice((None, -1, 1 << 70, 0.5, "x", "", [], {}, True, [[]], {"a": 1}, float("inf")))
        if isinstance(node, dict):
            return {key: walk(item) for key, item in node.items() if dice.random() > 0.003}
        return [walk(item) for item in node] if isinstance(node, (list, tuple)) else node

    data = json.dumps(walk(value)).encode()
    return mutated(dice, data) if dice.random() < 0.2 else data


def safetensors(dice: random.Random) -> Item:
    entries = {}
    for number in range(dice.randrange(6)):
        ending = dice.choice(("", ".qweight", ".SCB", "_blocks", ".g_idx"))
        dtype, shape = dice.choice(("BF16", "F8_E4M3", "U8", "", 7, None)), dice.choice(([4, 4], [], [-1], [1 << 62] * 9, "x", None))
        entries[f"model.layers.{number}.w{ending}"] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 1]}
    text = json.dumps(entries).encode()
    length = len(text) if dice.random() < 0.7 else dice.choice((0, 1, 99_999_999, 1 << 40, 1 << 63))
    data = struct.pack("<Q", length) + text
    return "model.safetensors", mutated(dice, data) if dice.random() < 0.4 else data


def archive(dice: random.Random) -> Item:
    """Archives with real and hostile entries, some of them bombs, then bytes changed."""
    entries = []
    for number in range(dice.randrange(1, 4)):
        name, data = text(dice)
        name = f"{number}{name}"
        name = dice.choice((name, "../../" + name, "/etc/" + name, "a/" * dice.choice((1, 30)) + name, f"\n{number}", f"con:{number}", f"{number}.pickle"))
        bomb = b"\0" * (12 << 20) if dice.random() < 0.01 else None
        entries.append((name, bomb or data))
    out = io.BytesIO()
    match dice.randrange(3):
        case 0:
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
                for name, data in entries:
                    packed.writestr(zipfile.ZipInfo(name), data, compress_type=zipfile.ZIP_DEFLATED)
            kind = "logs.zip"
        case 1:
            with tarfile.open(fileobj=out, mode="w:gz") as tar:
                for name, data in entries:
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    info.type = dice.choice((tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE))
                    tar.addfile(info, io.BytesIO(data) if info.type == tarfile.REGTYPE else None)
            kind = "logs.tar.gz"
        case _:
            out.write(gzip.compress(gzip.compress(entries[0][1])) if dice.random() < 0.3 else gzip.compress(entries[0][1]))
            kind = "log.gz"
    data = bytearray(out.getvalue())
    if dice.random() < 0.5 and data:
        for _ in range(dice.randrange(1, 10)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        if dice.random() < 0.2:
            del data[dice.randrange(len(data)) :]
    return kind, bytes(data)


@cache
def _links() -> tuple[str, ...]:
    return tuple(line for line in LINKS.read_text().splitlines() if line and not line.startswith("#"))


def link(dice: random.Random) -> str:
    """A query that was issued, spoiled."""
    query = dice.choice(_links())
    if dice.random() < 0.3:
        query += "&" + dice.choice(_links())
    if dice.random() < 0.05:
        query += "&job=" + base64.urlsafe_b64encode(gzip.compress(b"\0" * 1_000_000)).decode()
    return mutated(dice, query.encode()).decode("utf-8", "replace")
