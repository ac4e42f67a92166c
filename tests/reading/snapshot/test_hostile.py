"""Pickles made to do harm: each is refused with a sentence, nothing runs, nothing takes long, this process is never touched."""

from __future__ import annotations

import os
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from advisor.reading import read
from advisor.reading.snapshot.opcodes import RefusedError, scan
from advisor.reading.snapshot.process import Limits, summary_of
from advisor.reading.snapshot.unpickling import unpickle

HEAD = b"\x80\x04"


class Calls:
    def __init__(self, what: Any, *arguments: Any) -> None:
        self.what, self.arguments = what, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.what, self.arguments


def _memo_bomb() -> bytes:
    """Sixty lists, each holding the one before it twice: 2**60 items to whoever walks them."""
    out = HEAD + b"]\x94"
    for index in range(60):
        out += b"](" + b"h" + bytes([index]) + b"h" + bytes([index]) + b"e" + b"\x94"
    return out + b"."


def _hash_bomb() -> bytes:
    """A tuple of the tuple before it twice, sixty deep, as a dictionary's key: hashing it never ends."""
    out = HEAD + b"}" + b")\x94"
    for index in range(60):
        out += b"h" + bytes([index]) + b"\x86\x94"
    return out + b"Ns."


NAMED = {
    "os.system": (pickle.dumps(Calls(os.system, "touch /tmp/harmed")), "system"),
    "os.system, protocol 0": (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
    "eval": (pickle.dumps(Calls(eval, "1")), "builtins.eval"),
    "inside a snapshot": (pickle.dumps({"segments": [Calls(os.getcwd)], "device_traces": []}), "getcwd"),
    "instance": (b"(ios\nsystem\n.", "os.system"),
    "persistent": (HEAD + b"\x8c\x01aQ.", "BINPERSID"),
    "extension": (HEAD + b"\x82\x01.", "EXT1"),
    "build": (HEAD + b"}}b.", "BUILD"),
    "reduce without a name": (HEAD + b")R.", "REDUCE"),
    "object": (HEAD + b"(]o.", "OBJ"),
    "new object": (HEAD + b"])\x81.", "NEWOBJ"),
    "huge frame": (b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"]q\x00.", "declares a frame of 4,611,686,018,427,387,904 bytes"),
    "huge string": (HEAD + b"X" + struct.pack("<I", 0xFFFFFFF0) + b"a", "declares a value of 4,294,967,280 bytes"),
    "huge bytes": (HEAD + b"\x8e" + struct.pack("<Q", 1 << 62), "declares a value"),
    "huge memo": (HEAD + b"]r\xff\xff\xff\x7f.", "numbers an object"),
    "huge memo in text": (b"(lp99999999999999\n.", "numbers an object"),
    "long value": (HEAD + b"X" + struct.pack("<I", 2 << 20) + b"a" * (2 << 20) + b".", "checkpoint"),
    "cut off": (pickle.dumps({"segments": [1, 2, 3], "device_traces": []})[:-4], "cut off"),
    "buffer": (HEAD + b"\x97.", "NEXT_BUFFER"),
    "old checkpoint": (pickle.dumps(0x1950A86A20F9469CFC6C, 2), "torch.save"),
    "another value": (pickle.dumps({"a": 1, "b": 2}), "no segments"),
    "a number": (pickle.dumps(7), "type int"),
}


@pytest.mark.parametrize("name", NAMED)
def test_refused_with_the_name_of_what_was_found(name: str) -> None:
    data, said = NAMED[name]
    reading = read([("snapshot.pickle", data)])
    assert reading.state == "unreadable"
    assert reading.why is not None
    assert said in reading.why
    assert not Path("/tmp/harmed").exists()


@pytest.mark.parametrize("data", [_hash_bomb(), HEAD + b")" + b"\x85" * 2_000_000 + b"N}(" + b"0" + b"."], ids=["hash", "deep"])
def test_what_would_never_end_is_stopped(data: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(RefusedError, match=r"processor seconds|brought down|cannot be read|no segments|not read within|limits"):
        summary_of(data, Limits(1 << 30, 2, 8))
    assert time.monotonic() - started < 15


def test_a_structure_of_shared_parts_is_not_walked() -> None:
    reading = read([("memo.pickle", _memo_bomb())])
    assert reading.state == "unreadable"


def test_the_unpickler_alone_refuses_too(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(pickle.dumps(Calls(os.system, "true")))
    with file.open("rb") as handle, pytest.raises(RefusedError, match="system"):
        unpickle(handle)


def test_memory_is_bounded() -> None:
    data = HEAD + b"]" + b"(" + b"}" * 40_000_000 + b"e."  # forty million dictionaries of 64 bytes each
    with pytest.raises(RefusedError, match=r"more memory|limits"):
        summary_of(data, Limits(1 << 30, 30, 60))


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_of_every_protocol_pass(protocol: int) -> None:
    value = {"a": [1, -1, 300, 1 << 40, -(1 << 70), 0.5, None, True, ("x", "é" * 300), b"ab" if protocol > 2 else ""], "b": {"c": [[]] * 3}}
    scan(pickle.dumps(value, protocol))


def test_a_checkpoint_is_called_one() -> None:
    data = HEAD + b"\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93)R."
    why = read([("pytorch_model.pkl", data)]).why
    assert why is not None
    assert "torch._utils._rebuild_tensor_v2" in why
