"""A word of a command line as the value it stands for; only sums of whole numbers are worked out."""

from __future__ import annotations

import ast
import re
from typing import Any

from advisor.frameworks.key import Unread


def arithmetic(text: str, variables: dict[str, str]) -> str | None:
    """A sum of known whole numbers, worked out; ``None`` where anything else is in it."""
    known = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: variables.get(m.group(1), m.group(0)), text)
    if not re.fullmatch(r"[\d\s+\-*/%()]{1,200}", known) or "**" in known:
        return None
    try:
        value = _evaluated(ast.parse(known.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None
    return str(value)


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 1 << 50:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if abs(left) < 1 << 50 and abs(right) < 1 << 50:
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.FloorDiv):
                return left // right
            if isinstance(node.op, ast.Mod):
                return left % right
    raise ValueError("not a sum of whole numbers")


def literal(word: str) -> Any:
    """A word of a command line as the value it stands for."""
    word = word.strip()
    word = re.sub(r"^\$\{?HOME\}?(?=/)", "~", word)
    if "$" in word:
        return Unread(word)
    lower = word.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("null", "none", ""):
        return None
    if (len(word) < 100 and re.fullmatch(r"[-+]?[\d_]*\.?\d+([eE][-+]?\d+)?", word)) or (word[:1] in "[({'\"" and len(word) < 10_000):
        try:
            value = ast.literal_eval(word)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            if word[:1] == "[" and word[-1:] == "]":
                return [literal(part) for part in word[1:-1].split(",")]
            return word
        return value if isinstance(value, int | float | str | list) else word
    return word
