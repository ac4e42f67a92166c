"""Finds, loads and checks ``knowledge/``: in a checkout, an editable install and a wheel (where it travels as ``advisor/_knowledge``)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from advisor import compiling

_PACKAGE = Path(__file__).resolve().parent


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
    """A YAML file of ``knowledge/``, read once, from the build's JSON where that is of the same content. Callers must not change what they get."""
    file = path(*parts)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise KnowledgeError(f"{file.name} of the knowledge base cannot be read: {error}") from None
    compiled = _compiled().get("/".join(parts))
    if compiled is not None and compiled["digest"] == compiling.digest(raw):
        return compiling.decoded(compiled["text"])
    return _parse(raw.decode("utf-8"))


@cache
def _compiled() -> dict[str, Any]:
    try:
        found = json.loads((_PACKAGE / compiling.FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not built, or half written: the YAML says the same
        return {}
    return found if isinstance(found, dict) else {}


def _parse(text: str) -> Any:
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  a SafeLoader


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
    return _parse(front) or {}, body.strip()


def page_names(kind: str) -> tuple[str, ...]:
    """The names of the pages of a kind, sorted."""
    return tuple(sorted(file.stem for file in path(kind).glob("*.md")))
