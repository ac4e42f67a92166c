"""Library: causes, techniques, cards and models, each with an address of its own (``?kind=causes&page=logits``)."""

import streamlit as st

from advisor import cards, knowledge
from advisor.architecture.presets import find, names
from advisor.render import words
from advisor.units import gib, show_count
from advisor.views.words import plain

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
        st.header(words.TIERS.get(tier, tier or "Others"))
        with st.grid(2, min_column_width=330):
            for name, title, of in found:
                if of == tier:
                    st.button(plain(title), key=f"open:{kind}:{name}", on_click=go, args=(kind, name), type="tertiary", icon=":material/article:")


def card_table() -> None:
    st.markdown("What a process can use is less than the name on the box: the driver keeps a share, and the box counts in decimal.")
    st.dataframe(
        [
            {
                "Card": c.name,
                "Usable": gib(c.usable()[0], 1),
                "On the box": c.marketed_gb,
                "Bandwidth": None if c.bandwidth_bytes is None else c.bandwidth_bytes / 1e9,
                "bf16": None if not (rate := c.flops.get("bf16")) else rate / 1e12,
                "Capability": c.capability,
                "Id": c.id,
                "Not re-read at its source": ", ".join(sorted(c.unverified)),
            }
            for c in cards.catalogue().values()
        ],
        column_config={
            "Usable": st.column_config.NumberColumn(format="%.1f GiB", help="What a process can use, its CUDA context included."),
            "On the box": st.column_config.NumberColumn(format="%g GB"),
            "Bandwidth": st.column_config.NumberColumn(format="%.0f GB/s"),
            "bf16": st.column_config.NumberColumn(format="%.0f TFLOP/s", help="Dense matrix rate in bf16."),
            "Id": st.column_config.TextColumn(help="How a job file names it."),
        },
        hide_index=True,
        height=640,
        alt="The cards of the library with what a process can use of each.",
    )


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
    st.dataframe(
        [
            {
                "Model": n,
                "Parameters": show_count(p.parameters),
                "Weights in 16 bit": gib(p.parameters * 2, 1),
                "Config re-read": p.verified,
                "Open": f"library?kind=models&page={n}",
            }
            for n, p in found
            if p
        ],
        column_config={
            "Weights in 16 bit": st.column_config.NumberColumn(format="%.1f GiB"),
            "Config re-read": st.column_config.CheckboxColumn(help="Whether the config was read again at its source."),
            "Open": st.column_config.LinkColumn(display_text="config"),
        },
        hide_index=True,
        height=640,
        alt="The models of the library with their size.",
    )


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
