"""A syntax tree of Python that may be cut off or have a line of prose in it."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
import warnings

from advisor.reading.configs.parsed import MAX_DEPTH, RefusedError

_REPAIRS = 40
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def tree_of(text: str) -> tuple[ast.Module | None, list[int]]:
    """The syntax tree; unfinished brackets are closed, lines that cannot be parsed are left out."""
    code = textwrap.dedent(text.replace("\t", "    "))
    dropped: list[int] = []
    for _ in range(_REPAIRS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(code), dropped
        except (ValueError, RecursionError, MemoryError):
            return None, dropped
        except SyntaxError as error:
            if "too many nested" in str(error):
                raise RefusedError("brackets nested deeper than any training script; it was not read") from None
            closed = _closed(code) if not dropped or "never closed" in str(error) or "EOF" in str(error) else None
            if closed is not None and closed != code:
                code = closed
                continue
            lines = code.split("\n")
            number = min(max(error.lineno or 1, 1), len(lines))
            while number > 1 and not lines[number - 1].strip():
                number -= 1
            if not lines[number - 1].strip():
                return None, dropped
            stripped = lines[number - 1].lstrip()
            indent = len(lines[number - 1]) - len(stripped)
            if "positional argument follows" in str(error) and "..." in lines[number - 1]:
                lines[number - 1] = re.sub(r",?\s*\.\.\.\s*(?=[,)\]])", "", lines[number - 1])
            elif "unexpected indent" in str(error):
                lines[number - 1] = stripped
            elif lines[number - 1].strip() == "pass":
                lines[number - 1] = ""
            else:
                lines[number - 1] = " " * indent + "pass"
                dropped.append(number)
            code = "\n".join(lines)
    return None, dropped


def _closed(code: str) -> str | None:
    """The code with its open brackets closed at the end; an ellipsis of prose (``...``) stays valid."""
    stack: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.OP and token.string in _PAIRS:
                stack.append(_PAIRS[token.string])
            elif token.type == tokenize.OP and stack and token.string == stack[-1]:
                stack.pop()
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass
    if not stack or len(stack) > MAX_DEPTH:
        return None
    return code.rstrip().rstrip(",") + "\n" + "".join(reversed(stack)) + "\n"
