"""A pickle's opcodes, looked through before anything is built from them: a memory snapshot needs lists, dictionaries, numbers and strings only.

What loads or calls something (GLOBAL, REDUCE, ...), what declares more bytes than there are, and what does not end is refused with the name of
what was found. The opcodes and their arguments are those of Python's ``pickletools`` (protocols 0 to 5). Harmless ones of fixed length are
walked by one regular expression, about 100 MB a second; the others one by one.
"""

from __future__ import annotations

import mmap
import pickletools
import re
import warnings
from functools import cache

Buffer = bytes | mmap.mmap

FRAME = b"\x95"  # how many bytes follow, of which several opcodes are made
MAX_OPCODE_LENGTH = 1 << 20  # bytes of one string or number; a snapshot's longest are file names and allocator settings
EXPLAINED = 20_000  # opcodes that are read again to name what a refused one would have loaded
LOADING = {
    b"c": "GLOBAL", b"\x93": "STACK_GLOBAL", b"R": "REDUCE", b"b": "BUILD", b"i": "INST", b"o": "OBJ", b"\x81": "NEWOBJ", b"\x92": "NEWOBJ_EX",
    b"\x82": "EXT1", b"\x83": "EXT2", b"\x84": "EXT4", b"P": "PERSID", b"Q": "BINPERSID",
}  # fmt: skip
STRANGE = {
    b"\x8f": "EMPTY_SET", b"\x90": "ADDITEMS", b"\x91": "FROZENSET", b"\x96": "BYTEARRAY8", b"\x97": "NEXT_BUFFER", b"\x98": "READONLY_BUFFER",
    b"2": "DUP",
}  # fmt: skip
_COUNTED = {b"\x8a": 1, b"X": 4, b"T": 4, b"B": 4, b"\x8b": 4, b"\x8d": 8, b"\x8e": 8}  # opcode: bytes of its length
_LINES = b"FILSVgp"  # one argument, up to the line's end (protocol 0)
_LINE = re.compile(rb"[^\n]{0,%d}\n" % MAX_OPCODE_LENGTH)


class RefusedError(ValueError):
    """A file that is not opened; the message says what was found in it."""


def scan(data: Buffer) -> None:
    """Look through all opcodes up to STOP.

    Raises:
        RefusedError: at the first one that no memory snapshot needs, or where the pickle is cut off.
    """
    size = len(data)
    harmless = _harmless(size)
    at = 0
    while True:
        found = harmless.match(data, at)
        at = found.end() if found is not None else at
        opcode = data[at : at + 1]
        if opcode == b".":
            return
        if not opcode:
            raise RefusedError(f"a pickle that is cut off: its end is missing after {size:,} bytes")
        if opcode in LOADING:
            raise RefusedError(
                f"a pickle that {_asks(data, at, LOADING[opcode])} (opcode {LOADING[opcode]} at byte {at:,}). A memory snapshot holds lists, dictionaries, "
                "numbers and strings only, so nothing was loaded or run"
            )
        if opcode in STRANGE:
            raise RefusedError(f"a pickle with the opcode {STRANGE[opcode]} at byte {at:,}, which no memory snapshot needs; it was not opened")
        if opcode in _COUNTED:
            at = _counted(data, at, opcode, size)
        elif opcode in _LINES and (line := _LINE.match(data, at + 1)) is not None:
            if opcode == b"p" and (not line[0][:-1].isdigit() or int(line[0][:20]) > max(size, 1 << 24)):
                raise RefusedError(f"a pickle that numbers an object {line[0][:20]!r} at byte {at:,}: more than it has bytes; it was not opened")
            at = line.end()
        elif opcode == FRAME:
            length, left = int.from_bytes(data[at + 1 : at + 9], "little"), max(size - at - 9, 0)
            if length > left:  # it is read at once, so that much would be asked of memory
                raise RefusedError(f"a pickle that is cut off: it declares a frame of {length:,} bytes at byte {at:,}, where {left:,} are left")
            at += 9
        elif opcode == b"r":
            raise RefusedError(f"a pickle that numbers an object higher than it has bytes, at byte {at:,}; it was not opened")
        else:
            raise RefusedError(f"not a whole pickle: byte {at:,} is {opcode!r}, which starts no opcode that fits")


@cache
def _harmless(size: int) -> re.Pattern[bytes]:
    """Opcodes that build plain values and whose arguments are there. A memo number may not exceed the file's size: the memo is an array."""
    lengths = b"|".join(re.escape(bytes([n])) + b"." * n for n in range(256))
    top = re.escape(bytes([min(size >> 24, 0x7F)]))
    return re.compile(
        rb"(?:(?:j....)++|(?:h.)++|[(N}\])aesutdl01\x85-\x89\x94]++|[Kq].|J....|r...[\x00-" + top + rb"]|M..|"
        rb"\x8a(?:\x06.{6}|\x05.{5}|\x07.{7}|\x08.{8}|\x00|\x01.|\x02..|\x03...|\x04....|\x09.{9})|G.{8}|\x80.|[\x8cUC](?:" + lengths + rb"))*+",
        re.DOTALL,
    )


def _counted(data: Buffer, at: int, opcode: bytes, size: int) -> int:
    width = _COUNTED[opcode]
    length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
    end = at + 1 + width + length
    if end > size:
        raise RefusedError(f"a pickle that declares a value of {length:,} bytes at byte {at:,}, where {max(size - at, 0):,} are left; it was not opened")
    if length > MAX_OPCODE_LENGTH:
        raise RefusedError(f"a pickle with one value of {length:,} bytes at byte {at:,}: a checkpoint or data, not a memory snapshot; it was not opened")
    return end


def _asks(data: Buffer, at: int, opcode: str) -> str:
    """What the opcode would do, with the name it would load where that can be told."""
    name = _name(data, at)
    if opcode in ("GLOBAL", "STACK_GLOBAL", "INST"):
        return f"asks to load {name}" if name else "asks to load something by name"
    if opcode.startswith("EXT"):
        return "asks to load something from a registry"
    if "PERSID" in opcode:
        return "refers to storage outside itself, as a checkpoint does"
    return f"asks to call or build an object (of {name})" if name else "asks to call or build an object"


def _name(data: Buffer, at: int) -> str | None:
    """``posix.system``: the last name that is on the stack at a place near the start."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # strings of protocol 0 may hold escapes that Python warns of
            return _loaded(data[: at + 4096], at)
    except (ValueError, OverflowError):
        return None


def _loaded(data: bytes, at: int) -> str | None:
    strings: list[str] = []
    memo: dict[int, str] = {}
    for number, (op, argument, place) in enumerate(pickletools.genops(data)):
        if number > EXPLAINED or place is None or place > at:
            break
        if op.name in ("GLOBAL", "INST") and isinstance(argument, str):
            return _shown(argument.replace(" ", "."))
        if isinstance(argument, str):
            strings.append(argument)
        elif op.name == "MEMOIZE" and strings:
            memo[len(memo)] = strings[-1]
        elif op.name in ("BINGET", "LONG_BINGET") and isinstance(argument, int) and argument in memo:
            strings.append(memo[argument])
        if op.name == "STACK_GLOBAL" and len(strings) >= 2:
            return _shown(f"{strings[-2]}.{strings[-1]}")
    return None


def _shown(name: str) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in name)
    return clean if len(clean) <= 80 else clean[:77] + "..."
