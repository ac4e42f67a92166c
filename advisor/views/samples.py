"""Six real failures to look at: the empty page is never empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from advisor import knowledge


@st.cache_data(show_spinner=False, max_entries=1)
def samples() -> dict[str, dict[str, Any]]:
    """All of ``knowledge/samples``, by file name."""
    return {file.stem: knowledge.load_yaml("samples", file.name) for file in sorted(knowledge.path("samples").glob("*.yaml"))}


def show_samples(take: Callable[[dict[str, str]], None]) -> None:
    """A card each, with its title as the button; ``take`` is given the files of the one that is chosen."""
    st.header("Or look at a real one")
    with st.grid(3, min_column_width=240):
        for name, sample in samples().items():
            with st.container(border=True, height="stretch"):
                st.button(sample["title"], key=f"sample:{name}", on_click=take, args=(sample["files"],), icon=":material/play_arrow:")
                st.caption(f"{sample['says']}. {sample['source']}")
