"""Results of checks in the forms that CI systems read: JUnit XML and GitHub's annotations."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from msgspec import Struct


class Check(Struct, frozen=True):
    """One check: its name, and why it failed; ``None``: it passed."""

    name: str
    failed: str | None = None


def junit(suite: str, checks: Sequence[Check]) -> str:
    """One test suite, one case a check."""
    failures = sum(check.failed is not None for check in checks)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name={quoteattr(suite)} tests="{len(checks)}" failures="{failures}">']
    for check in checks:
        head = f"  <testcase classname={quoteattr(suite)} name={quoteattr(check.name)}"
        if check.failed is None:
            lines.append(f"{head}/>")
        else:
            lines += [f"{head}>", f"    <failure message={quoteattr(check.failed)}>{escape(check.failed)}</failure>", "  </testcase>"]
    return "\n".join([*lines, "</testsuite>", ""])


def github(title: str, checks: Sequence[Check], file: str | None = None) -> str:
    """A workflow command for each failed check; GitHub shows them beside the change."""
    place = f"file={_property(file)}," if file else ""
    return "".join(f"::error {place}title={_property(title)}::{_data(check.failed)}\n" for check in checks if check.failed is not None)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
