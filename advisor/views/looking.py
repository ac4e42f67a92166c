"""A search over the whole library: names, titles and texts of every kind, the nearest first."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import streamlit as st
from msgspec import Struct

from advisor import cards, knowledge
from advisor.architecture.presets import names as model_names
from advisor.frameworks.table import names as framework_names
from advisor.render import words
from advisor.views.words import plain

ARTICLES = ("causes", "techniques", "guides")  # kinds whose pages are read as text
MOST = 12  # hits of a kind that are shown
_AROUND = 60  # characters of the text on each side of what was found
_HEAD = re.compile(r"^#+ (.+)$", re.MULTILINE)
# an underscore inside a word belongs to a setting's name
_MARKUP = re.compile(r"```.*?```|[`*#>|\[\]]|(?<!\w)_|_(?!\w)|\(https?:[^)]*\)", re.DOTALL)


class Entry(Struct, frozen=True):
    """A page, card, model or framework. ``page``: what its address names."""

    kind: str
    page: str
    title: str
    named: str  # lower case: id, title and other names
    text: str


class Hit(Struct, frozen=True):
    """An entry that was found; ``excerpt`` where only its text has the words."""

    entry: Entry
    excerpt: str


@cache
def entries() -> tuple[Entry, ...]:
    """Everything that the library holds."""
    found = []
    for kind in ARTICLES:
        for name in knowledge.page_names(kind):
            front, body = knowledge.page(kind, name)
            title = str(front.get("title") or words.title(kind, name))
            found.append(Entry(kind, name, title, f"{name} {title}".lower(), body))
    found += [Entry("cards", c.id, c.name, " ".join((c.id, c.name, *c.aliases)).lower(), "") for c in cards.catalogue().values()]
    found += [Entry("models", name, name, name.lower(), "") for name in model_names()]
    return (*found, *(Entry("frameworks", name, name, name.lower(), "") for name in framework_names()))


def look(query: str) -> list[Hit]:
    """What has every word of the query: first where the name or title has them all, then by how many of them are in it."""
    wanted = query.lower().split()[:12]
    hits: list[tuple[int, Hit]] = []
    for entry in entries() if wanted else ():
        in_name = sum(word in entry.named for word in wanted)
        text = entry.text.lower()
        if all(word in entry.named or word in text for word in wanted):
            hits.append((-in_name, Hit(entry, "" if in_name == len(wanted) else _excerpt(entry.text, [w for w in wanted if w not in entry.named]))))
    return [hit for _, hit in sorted(hits, key=lambda h: h[0])]


def _excerpt(text: str, wanted: list[str]) -> str:
    """The words around what was found, without markup."""
    bare = " ".join(_MARKUP.sub("", _HEAD.sub(r"\1:", text)).split())
    at = next((place for word in wanted if (place := bare.lower().find(word)) >= 0), 0)
    start, end = max(0, at - _AROUND), at + _AROUND
    return f"{'…' if start else ''}{bare[start:end]}{'…' if end < len(bare) else ''}"


def show_found(query: str, kinds: dict[str, str], go: Callable[[str, str | None], None]) -> None:
    """The hits of a query by kind; ``go(kind, page)`` opens one."""
    hits = look(query)
    if not hits:
        st.markdown("Nothing in the library has all of these words, in a name or in a text.")
    for kind in sorted({h.entry.kind for h in hits}, key=list(kinds).index):
        of_kind = [h for h in hits if h.entry.kind == kind]
        st.header(kinds[kind])
        for hit in of_kind[:MOST]:
            st.button(
                plain(hit.entry.title),
                key=f"found:{kind}:{hit.entry.page}",
                on_click=go,
                args=(kind, hit.entry.page),
                type="tertiary",
                icon=":material/article:",
            )
            if hit.excerpt:
                st.caption(plain(hit.excerpt))
        if len(of_kind) > MOST:
            st.caption(f"and {len(of_kind) - MOST} more: add a word")
