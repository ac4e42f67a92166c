"""Comments that are code: a call or a flag that somebody took out says what the run is not."""

from __future__ import annotations

import ast

from advisor.reading.pattern import pattern

LONGEST = 1000  # characters of a comment that are looked at
_FLAG = pattern(r"^-{1,2}[A-Za-z][\w-]{2,}")
_CALL = pattern(r"^(?:[\w.\[\], ]{1,80}=\s*|return |yield |await |with |if |for )?[A-Za-z_][\w.]{0,80}\(")


def is_code(comment: str) -> bool:
    """Whether a comment (without its ``#``) is a statement with a call, whole or its first line, or begins with a command's flag."""
    text = comment.strip()[:LONGEST]
    if _FLAG.match(text) is not None:
        return True
    if _CALL.match(text) is None:
        return False
    try:
        parsed = ast.parse(text.rstrip(",\\ ").removesuffix(":"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text.count("(") > text.count(")") and text.endswith(("(", ","))  # it goes on in the next line
    return any(isinstance(node, ast.Call) for node in ast.walk(parsed))
