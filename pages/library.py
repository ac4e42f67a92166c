"""Library: causes, techniques, cards, models and frameworks, each with an address of its own (``?kind=causes&page=logits``)."""

import re

import streamlit as st

from advisor import knowledge
from advisor.render import words
from advisor.views.looking import show_found
from advisor.views.one_card import one_card
from advisor.views.origins import linked
from advisor.views.related import show_related
from advisor.views.shelves import card_table, framework_table, model_table, one_framework, one_model
from advisor.views.words import plain

UNVERIFIED = "From memory: not read again when this page was written, so check it before you rely on it"
KINDS = {"causes": "Causes", "techniques": "Techniques", "cards": "Cards", "models": "Models", "frameworks": "Frameworks", "guides": "Guides"}
ONE = {"cards": one_card, "models": one_model, "frameworks": one_framework}
ALL = {"cards": card_table, "models": model_table, "frameworks": framework_table}


def go(kind: str, page: str | None = None) -> None:
    st.query_params.from_dict({"kind": kind} if page is None else {"kind": kind, "page": page})


def chosen_kind() -> None:
    open_found(st.session_state["library-kind"])


def open_found(kind: str, page: str | None = None) -> None:
    st.session_state["library-look"] = ""  # what was looked for is found
    go(kind, page)


@st.cache_data(show_spinner=False, max_entries=4)
def pages(kind: str) -> list[tuple[str, str, str]]:
    """(id, title, tier) of every page of a kind."""
    found = []
    for name in knowledge.page_names(kind):
        front, _ = knowledge.page(kind, name)
        found.append((name, str(front.get("title") or words.title(kind, name)), str(front.get("tier") or "")))
    return found


def sources_of(front: dict) -> list[str]:
    """The sources of a page as Markdown, each with a link where it has an address."""
    listed = front.get("sources") or front.get("source") or []
    listed = [listed] if isinstance(listed, (str, dict)) else listed
    return [told(s) if isinstance(s, dict) else linked(str(s)) for s in listed]


def told(source: dict) -> str:
    """A source in a line; what was not read again when the page was written says so in plain words."""
    read = str(source.get("read") or "")
    named = ", ".join([plain(source["title"])] * bool(source.get("title")) + [linked(str(source["where"]))] * bool(source.get("where")))
    if "recalled" in read.lower():
        return f"{named}. {UNVERIFIED}"
    rest = [plain(value) for key, value in source.items() if key not in ("title", "where", "read")]
    return ", ".join([named, *rest]) + (f". Read: {plain(read)}" if read else "")


def under_title(body: str) -> str:
    """A page's text with its headings a step lower than its title, which they would otherwise look like.

    Its code has no colours: those that Streamlit gives to a language are too pale on the light ground.
    """
    pieces = body.split("```")
    pieces[::2] = [re.sub(r"^##(?=#* )", "###", piece, flags=re.MULTILINE) for piece in pieces[::2]]
    pieces[1::2] = [piece[piece.index("\n") :] if "\n" in piece else piece for piece in pieces[1::2]]
    return "```".join(pieces)


def article(kind: str, name: str) -> None:
    """One cause, technique or guide: its page of the knowledge base."""
    try:
        front, body = knowledge.page(kind, name)
    except knowledge.KnowledgeError:
        st.warning(f"The library has no page {plain(name)} among its {KINDS[kind].lower()}.", icon=":material/search_off:")
        overview(kind)
        return
    st.button("All " + KINDS[kind].lower(), icon=":material/arrow_back:", on_click=go, args=(kind,))
    st.header(plain(front.get("title") or words.title(kind, name)))
    if tier := front.get("tier"):
        st.caption(f"{words.TIERS.get(str(tier), str(tier))} · {name}")
    st.markdown(under_title(body))
    for example in front.get("examples") or ():
        show_example(str(example))
    show_related(kind, name, front, go)
    listed = sources_of(front)
    if listed:
        st.subheader("Sources")
        st.markdown("\n".join(f"- {s}" for s in listed))


def show_example(name: str) -> None:
    """A tested example, to read and to take."""
    text = knowledge.path("examples", name).read_text(encoding="utf-8")
    with st.expander(plain(name), icon=":material/code:"):
        if name.endswith(".py"):
            st.code(text, language=None, wrap_lines=True)
        st.download_button("Download", text, name, "text/plain", on_click="ignore", icon=":material/download:", key=f"example:{name}")


def overview(kind: str) -> None:
    """All pages of a kind by tier, in the order in which a plan looks."""
    found = pages(kind)
    tiers = [*words.TIERS, ""]
    for tier in sorted({t for _, _, t in found}, key=lambda t: tiers.index(t) if t in tiers else 99):
        st.header(words.TIERS.get(tier, tier or "Others"))
        with st.grid(2, min_column_width=500, gap="xsmall"):
            for name, title, of in found:
                if of == tier:
                    st.button(plain(title), key=f"open:{kind}:{name}", on_click=go, args=(kind, name), type="tertiary", icon=":material/article:")


kind = st.query_params.get("kind", "causes")
kind = kind if kind in KINDS else "causes"
name = st.query_params.get("page")
st.title("Library")
st.session_state["library-kind"] = kind
st.radio("Shelf", list(KINDS), format_func=KINDS.get, key="library-kind", on_change=chosen_kind, horizontal=True, label_visibility="collapsed")
query = st.text_input("Look in everything", key="library-look", placeholder="KV cache, expandable, no_grad, DDP, H100", type="search")
if query.strip():
    show_found(query, KINDS, open_found)
elif name and kind in ONE:
    st.button("All " + KINDS[kind].lower(), icon=":material/arrow_back:", on_click=go, args=(kind,))
    ONE[kind](name)
elif kind in ALL:
    ALL[kind]()
elif name:
    article(kind, name)
else:
    overview(kind)
