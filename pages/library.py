"""Library: causes, techniques, cards and models, each with an address of its own (``?kind=causes&page=logits``)."""

import streamlit as st

from advisor import cards, knowledge
from advisor.architecture.presets import find, names
from advisor.render import words
from advisor.units import gib, show, show_count
from advisor.views.words import plain, table

KINDS = {"causes": "Causes", "techniques": "Techniques", "cards": "Cards", "models": "Models"}


def go(kind: str, page: str | None = None) -> None:
    st.query_params.from_dict({"kind": kind} if page is None else {"kind": kind, "page": page})


def chosen_kind() -> None:
    go(st.session_state["library-kind"])


@st.cache_data(show_spinner=False, max_entries=4)
def pages(kind: str) -> list[tuple[str, str, str]]:
    """(id, title, tier) of every page of a kind."""
    found = []
    for name in knowledge.page_names(kind):
        front, _ = knowledge.page(kind, name)
        found.append((name, str(front.get("title") or words.title(kind, name)), str(front.get("tier") or "")))
    return found


def sources_of(front: dict) -> list[str]:
    listed = front.get("sources") or front.get("source") or []
    listed = [listed] if isinstance(listed, (str, dict)) else listed
    return [", ".join(str(v) for v in s.values()) if isinstance(s, dict) else str(s) for s in listed]


def article(kind: str, name: str) -> None:
    """One cause or technique: its page of the knowledge base."""
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
    st.markdown(body)
    listed = sources_of(front)
    if listed:
        st.subheader("Sources")
        st.markdown("\n".join(f"- {plain(s) if not s.startswith('http') else s}" for s in listed))


def overview(kind: str) -> None:
    """All pages of a kind by tier, in the order in which a plan looks."""
    found = pages(kind)
    if not found:
        st.markdown("Nothing is written here yet.")
    tiers = [*words.TIERS, ""]
    for tier in sorted({t for _, _, t in found}, key=lambda t: tiers.index(t) if t in tiers else 99):
        st.subheader(words.TIERS.get(tier, tier or "Others"))
        with st.grid(3, min_column_width=240):
            for name, title, of in found:
                if of == tier:
                    st.button(plain(title), key=f"open:{kind}:{name}", on_click=go, args=(kind, name), type="tertiary", icon=":material/article:")


def card_table() -> None:
    listed = [
        (
            plain(c.name) + (" (unverified: " + plain(", ".join(sorted(c.unverified))) + ")" if c.unverified else ""),
            f"{c.marketed_gb:g} GB",
            show(c.usable()[0]),
            "" if c.bandwidth_bytes is None else f"{c.bandwidth_bytes / 1e9:,.0f} GB/s",
            c.capability or "",
            f"`{c.id}`",
        )
        for c in cards.catalogue().values()
    ]
    st.markdown("What a process can use is less than the name on the box: the driver keeps a share, and the box counts in decimal.")
    st.markdown(table(("Card", "On the box", "Usable", "Bandwidth", "Capability", "Id"), listed, right=(1, 2, 3)))


def model_table(one: str | None) -> None:
    if one and (preset := find(one)):
        st.button("All models", icon=":material/arrow_back:", on_click=go, args=("models",))
        st.header(plain(preset.hub_id))
        st.markdown(f"{show_count(preset.parameters)} parameters; {gib(preset.parameters * 2, 1):,} GiB of weights in 16 bit.")
        if preset.note:
            st.markdown(plain(preset.note))
        st.caption(f"Config {'read at its source' if preset.verified else 'not re-read at its source'}. {plain(preset.source)}")
        st.json(dict(preset.config), expanded=False)
        return
    wanted = st.text_input("Look for a model", key="library-models", placeholder="llama")
    found = [(n, find(n)) for n in names() if wanted.lower() in n.lower()]
    listed = [(plain(n), show_count(p.parameters), f"{gib(p.parameters * 2, 1):,} GiB", "yes" if p.verified else "no") for n, p in found if p]
    st.markdown(table(("Model", "Parameters", "Weights in 16 bit", "Config re-read"), listed, right=(1, 2)))


kind = st.query_params.get("kind", "causes")
kind = kind if kind in KINDS else "causes"
name = st.query_params.get("page")
st.title("Library")
st.session_state["library-kind"] = kind
st.segmented_control("Shelf", list(KINDS), format_func=KINDS.get, key="library-kind", on_change=chosen_kind, required=True, label_visibility="collapsed")
if kind == "cards":
    card_table()
elif kind == "models":
    model_table(name)
elif name:
    article(kind, name)
else:
    overview(kind)
