"""A pattern that is compiled late behaves as one that is compiled at once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from advisor.reading.pattern import pattern


def test_it_behaves_as_compiled() -> None:
    late, early = pattern(r"(\w)(\d)", re.IGNORECASE), re.compile(r"(\w)(\d)", re.IGNORECASE)
    text = "a1 B2 c"
    assert late.findall(text) == early.findall(text)
    assert late.sub(r"\2\1", text) == early.sub(r"\2\1", text)
    assert [m.span() for m in late.finditer(text)] == [m.span() for m in early.finditer(text)]
    assert (late.pattern, late.flags, late.groups) == (early.pattern, early.flags, early.groups)


def test_a_name_that_no_pattern_has_is_an_error() -> None:
    with pytest.raises(AttributeError):
        pattern("a").nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_nothing_is_compiled_by_importing_the_readers() -> None:
    script = (
        "import re, re._compiler as c; own=[]; real=c.compile\n"
        "def spy(p, f=0):\n"
        "    import sys; frame=sys._getframe(2); name=frame.f_globals['__name__']\n"
        "    own.append(name) if name.startswith('advisor.reading') else None; return real(p, f)\n"
        "re._compiler.compile = spy\n"
        "import advisor.reading.reading; print(sorted(set(own)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
