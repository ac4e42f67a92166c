"""Which branch of ``if`` and ``case`` a script takes, where what it looks at is known: true, false, or ``None`` for not known."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from advisor.reading.configs.shell_expand import Scope
from advisor.reading.configs.shell_words import arithmetic
from advisor.reading.pattern import pattern

_COMPARED = pattern(r"^(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+)$", re.DOTALL)
_NUMERIC = {"-eq": "==", "-ne": "!=", "-gt": ">", "-lt": "<", "-ge": ">=", "-le": "<="}


def holds(words: list[str], scope: Scope) -> bool | None:
    """Whether a command that stands as a condition succeeds."""
    if not words:
        return None
    signs = next((i for i, word in enumerate(words) if word != "!"), len(words))
    if signs:
        return _turned(holds(words[signs:], scope), signs)
    if words[0].startswith("[["):
        return _test(words[0][2:-2], scope)
    if words[0] in ("[", "test"):
        return _test(" ".join(words[1:-1] if words[0] == "[" else words[1:]), scope)
    if words[0].startswith("(("):
        return _numbers(scope.text('"' + words[0][2:-2].replace('"', "") + '"'), scope)
    return {"true": True, ":": True, "false": False}.get(words[0])


def _turned(value: bool | None, signs: int) -> bool | None:
    """The value behind so many ``!``."""
    return value if value is None or signs % 2 == 0 else not value


def fits(word: str, patterns: list[str], scope: Scope) -> bool | None:
    """Whether a branch of ``case`` is for the word."""
    value = scope.text(word)
    if "$" in value or not value:
        return None
    return any(fnmatchcase(value, scope.text(pattern)) for pattern in patterns if pattern != "|")


def _test(text: str, scope: Scope) -> bool | None:
    for joint, decides in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        parts = re.split(rf"\s{re.escape(joint)}\s", text)
        if len(parts) > 1:
            values = [_test(part, scope) for part in parts]
            return decides if decides in values else None if None in values else not decides
    text = text.strip()
    if text.startswith("!"):
        bare = text.lstrip("! \t")
        return _turned(_test(bare, scope), text[: len(text) - len(bare)].count("!"))
    if (match := re.match(r"^-([zn])\s*(.*)$", text, re.DOTALL)) is not None:
        empty = _empty(match.group(2), scope)
        return empty if empty is None or match.group(1) == "z" else not empty
    if (match := re.match(r"^-v\s+(\w+)$", text)) is not None:
        return match.group(1) in scope.variables
    if re.match(r"^-[a-zA-Z]\s", text) or "=~" in text:
        return None  # files and regular expressions
    if (match := re.match(r"^(.+?)\s+(-eq|-ne|-gt|-lt|-ge|-le)\s+(.+)$", text, re.DOTALL)) is not None:
        left, right = scope.text(match.group(1)), scope.text(match.group(3))
        return _numbers(f"{left} {_NUMERIC[match.group(2)]} {right}", scope)
    if (match := re.match(r"^(.+?)\s*(==|!=|=)\s*(.*)$", text, re.DOTALL)) is not None:
        left, right = scope.text(match.group(1)), scope.text(match.group(3))
        if not left or not right:  # [ "$3" == "" ]: whether the other is empty
            empty = _empty(match.group(3) if not left else match.group(1), scope)
            return None if empty is None else empty == (match.group(2) != "!=")
        if "$" in left or "$" in right or "`" in left + right:
            return None
        same = fnmatchcase(left, right) if any(s in match.group(3) for s in "*?") and len(right) < 60 else left == right
        return same == (match.group(2) != "!=")
    empty = _empty(text, scope)
    return None if empty is None else not empty


def _empty(word: str, scope: Scope) -> bool | None:
    """Whether a word is empty: a variable that nothing assigned is, as in a fresh shell."""
    value = scope.text(word.strip())
    if re.fullmatch(r"\$\{?[A-Za-z_]\w*\}?|\$\{?\d\}?", value):
        return True
    return None if "$" in value or "`" in value else not value


def _numbers(text: str, scope: Scope) -> bool | None:
    match = _COMPARED.match(text.strip())
    if match is None:
        value = arithmetic(text, scope.variables)
        return None if value is None else value != "0"
    left, right = arithmetic(match.group(1), scope.variables), arithmetic(match.group(3), scope.variables)
    if left is None or right is None:
        return None
    a, b = int(left), int(right)
    return {"==": a == b, "!=": a != b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[match.group(2)]
