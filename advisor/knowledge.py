"""Finds, loads and checks ``knowledge/``: in a checkout, an editable install and a wheel (where it travels as ``advisor/_knowledge``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

_PACKAGE = Path(__file__).resolve().parent
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KnowledgeError(RuntimeError):
    """A file of the knowledge base is missing or not in its form: a fault of the installation, not of the user's input."""


@cache
def folder(name: str) -> Path:
    """``pages`` or ``knowledge``: beside the package in a checkout, inside it (``_pages``) in a wheel."""
    for candidate in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise KnowledgeError(f"the folder {name!r} is neither inside nor beside {_PACKAGE}; install the package again")


def path(*parts: str) -> Path:
    """A path within ``knowledge/``."""
    return folder("knowledge").joinpath(*parts)


@cache
def load_yaml(*parts: str) -> Any:
    """A YAML file of ``knowledge/``, read once. Callers must not change what they get."""
    file = path(*parts)
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506  a SafeLoader
    except OSError as error:
        raise KnowledgeError(f"{file.name} of the knowledge base cannot be read: {error}") from None


@cache
def page(kind: str, name: str) -> tuple[dict[str, Any], str]:
    """A Markdown page with YAML front matter, as ``(front matter, body)``: ``page("causes", "logits")``."""
    file = path(kind, f"{name}.md")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise KnowledgeError(f"the page {kind}/{name}.md cannot be read: {error}") from None
    if not text.startswith("---\n"):
        raise KnowledgeError(f"{kind}/{name}.md has no front matter")
    front, _, body = text[4:].partition("\n---\n")
    return yaml.load(front, Loader=_LOADER) or {}, body.strip()  # noqa: S506  a SafeLoader


def page_names(kind: str) -> tuple[str, ...]:
    """The names of the pages of a kind, sorted."""
    return tuple(sorted(file.stem for file in path(kind).glob("*.md")))
