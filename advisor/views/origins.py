"""Where something was read, as a link: a repository, a paper, or a page of the web."""

from __future__ import annotations

import re

from advisor.sources import origin
from advisor.views.words import plain

_PAPER = re.compile(r"\barXiv (\d{4}\.\d{4,5})\b")
_REPOSITORY = re.compile(r"^([A-Za-z0-9][\w-]*/[\w.-]+)(?=[\s,;(]|$)")
_SITE = re.compile(r"^((?:[a-z0-9-]+\.)+(?:org|com|io))(?=[\s,;/]|$)")
_ADDRESS = re.compile(r"^https://\S+$")


def address(source: str) -> str | None:
    """The web address of a source text; ``None`` where it names nothing that has one.

    A repository is linked, not the file in it: a file that was read at one version may have moved since.
    """
    if _ADDRESS.match(source):
        return source
    if paper := _PAPER.search(source):
        return f"https://arxiv.org/abs/{paper.group(1)}"
    if repository := _REPOSITORY.match(source):
        return f"https://github.com/{repository.group(1)}"
    if site := _SITE.match(source):
        return f"https://{site.group(1)}"
    found = origin(source)
    return found.url if found is not None else None


def linked(source: str) -> str:
    """The source text as Markdown; several are parted by semicolons, and each that has an address is a link."""
    return "; ".join(plain(piece) if (found := address(piece)) is None else f"[{plain(piece)}]({found})" for piece in source.split("; "))
