"""The line of a function that put something into a name, read from its bytecode: nothing is executed."""

from __future__ import annotations

import dis
from types import CodeType, FrameType

_GROWS = frozenset({"append", "extend", "add", "appendleft", "setdefault", "update", "insert"})


def reached(frame: FrameType) -> int:
    """The last line that a frame may have run: the line it is at, or the end of the outermost loop around it."""
    last = frame.f_lineno
    line = last
    for instruction in dis.get_instructions(frame.f_code):
        line = (instruction.positions.lineno if instruction.positions else None) or line
        if instruction.opname.startswith("JUMP_BACKWARD") and instruction.argval <= frame.f_lasti <= instruction.offset:
            last = max(last, line, *(ln for start, _, ln in frame.f_code.co_lines() if ln is not None and instruction.argval <= start <= instruction.offset))
    return last


def binding_line(code: CodeType, name: str, *, until: int) -> int | None:
    """The line of a function that puts something into a name: its last growth (``name.append(...)``) where there is one, else its last store."""
    stored, grown = bindings(code, name, until=until)
    lines = grown or stored
    return lines[-1] if lines else None


def bindings(code: CodeType, name: str, attribute: str | None = None, *, until: int | None = None) -> tuple[list[int], list[int]]:
    """Lines of a function that store into a name, and lines that make what it holds larger.

    With ``attribute``: into ``name.attribute`` (or, for methods, ``self.attribute``). Lines after ``until`` have not run.
    """
    stored: list[int] = []
    grown: list[int] = []
    line: int | None = None
    target = attribute or name
    loads = ("LOAD_ATTR", "LOAD_METHOD") if attribute else ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
    stores = ("STORE_ATTR",) if attribute else ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
    previous: dis.Instruction | None = None
    pending = False
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions and instruction.positions.lineno else line
        if line is None or (until is not None and line > until):
            continue
        if instruction.opname in stores and instruction.argval == target:
            stored.append(line)
        if previous is not None and previous.opname in loads and previous.argval == target:
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in _GROWS:
                grown.append(line)
            pending = True
        if instruction.opname == "STORE_SUBSCR" and pending:
            grown.append(line)
        if instruction.opname.startswith("STORE") or instruction.opname == "POP_TOP":
            pending = False
        previous = instruction
    return stored, grown
