"""What an expression needs: every text that it matches has one of the words, for all expressions of the house and some made to mislead."""

import random
import re
import time
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import advisor.reading
import advisor.rules
from advisor.reading import pattern as lazily
from advisor.reading.literals import needed
from advisor.reading.pattern import pattern
from advisor.rules.engine import all_rules

MISLEADING = (
    r"abc?def", r"abc*def", r"abc+def",
    r"abc{0,2}def", r"abc{2}def", r"abc{,2}def", r"(abc)?def", r"(abc|)def", r"(?:abc)*", r"(?:abc|def)+",
    r"abc|de", r"(?=abc)abc", r"(?!abc)def|(?!ghi)jkl", r"[abc|def]{3}", r"[]abc]{3}x+", r"[^]abc]{3}", r"a\|bc\(d", r"abc\d{2}def", r"(a(b(c)))def",
    r"abc\nde",
    r"(?P<one>abc)(?P=one)", r"x{0}abc", r"(abc){0}def", r"(abc){,3}def", r"abc??def", r"abc|", r"|abc", r"(ab|cd|ef)(ghi)?", r"\babc\b.*?\bdef\b",
    r"ΑΒΓ|straße",
)  # fmt: skip


def lazies() -> list[Any]:
    """The expressions of the readers and rules that stand in a module."""
    found = []
    for package in (advisor.reading, advisor.rules):
        for module in walk_packages(package.__path__, package.__name__ + "."):
            if "snapshot" not in module.name:
                found += [value for value in vars(import_module(module.name)).values() if isinstance(value, lazily._Lazy)]
    return found


MARKS = sorted({mark.pattern for rule in all_rules() for mark in rule.marks if mark.pattern is not None})


def written(tree: Any, choose: random.Random) -> str:
    """A text of the shape that the library's own parser sees: each repetition as often as it must or once more, each choice by chance, no assertion held."""
    parts = []
    for operator, argument in tree:
        match str(operator):
            case "LITERAL":
                parts.append(chr(argument))
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, _, inner = argument
                parts += [written(inner, choose) for _ in range(least + choose.randrange(2))]
            case "SUBPATTERN" | "ATOMIC_GROUP":
                parts.append(written(argument[-1] if str(operator) == "SUBPATTERN" else argument, choose))
            case "BRANCH":
                parts.append(written(choose.choice(argument[1]), choose))
            case "IN" | "ANY" | "NOT_LITERAL" | "CATEGORY":
                parts.append("\u2603")
            case "AT" | "ASSERT" | "ASSERT_NOT" | "GROUPREF":
                pass
            case _:
                raise AssertionError(f"{operator} is not written")
    return "".join(parts)


def test_what_matches_has_a_word() -> None:
    parser, choose, told = import_module("re._parser"), random.Random(7), 0
    for text in {*MISLEADING, *MARKS, *(each.pattern for each in lazies())}:
        if words := needed(text):
            told += 1
            for _ in range(40):
                matched = written(parser.parse(text, re.IGNORECASE), choose)
                assert any(word in matched.casefold() for word in words), (text, words, matched)
    assert told > 250, "or nothing is saved"


@pytest.mark.parametrize("text", MISLEADING)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_against_the_library(text: str, data: st.DataObject) -> None:
    matched = data.draw(st.from_regex(re.compile(text)))
    assert not needed(text) or any(word in matched.casefold() for word in needed(text))


@pytest.mark.parametrize(("text", "words"), [
    (r"CUDA out of memory", ("cuda out of memory",)), (r"(foo|bar)baz+", ("foo", "bar")), (r"no|yes", ()), (r"(?i)abc", ()), (r"a.c", ()),
    (r"step \d+ of", ("step ",)), (r"ab[cd]efgh\s", ("efgh",)), (r"(", ()), (r"abc)", ()), (r"[abc", ()), (r"*abc", ()), (r"x(?>abc)", ()),
])  # fmt: skip
def test_the_longest_certain_words(text: str, words: tuple[str, ...]) -> None:
    assert needed(text) == words


def test_it_behaves_as_the_compiled_one() -> None:
    for subject in ("", "no word", "a Word=3, word=44", "word="):
        for method in ("search", "match", "fullmatch"):
            got, want = (getattr(make(r"word=(\d+)", re.IGNORECASE), method)(subject) for make in (pattern, re.compile))
            assert (got and got.span()) == (want and want.span())
        lazy, real = pattern(r"word=(\d+)", re.IGNORECASE), re.compile(r"word=(\d+)", re.IGNORECASE)
        assert lazy.findall(subject) == real.findall(subject)
        assert [m.span() for m in lazy.finditer(subject)] == [m.span() for m in real.finditer(subject)]
        assert lazy.sub("x", subject) == real.sub("x", subject)
    assert pattern("abc").pattern == "abc"


def test_no_expression_takes_long_on_a_long_line() -> None:
    """Lines of 1,500 characters that invite backtracking: what is held against every line of a log has milliseconds."""
    hostile = (" " * 1500, "a" * 1500, "a." * 700, "a_" * 700, "- " * 700, "x = " * 350, "(" * 1500, "word," * 300, "memory each step grows " * 60)
    slow = []
    for each in lazies():
        compiled = re.compile(each._text, each._flags)
        for line in (*hostile, "\n" * 8000) if each._flags & re.MULTILINE else hostile:  # a whole text goes to those that know of lines
            began = time.process_time()
            compiled.search(line)
            if (taken := time.process_time() - began) > 0.5:
                slow.append((each._text, line[:12], taken))
    assert not slow
