"""The address bar as the page's memory: what a reader arrives with is opened once, and what the page comes to is written there."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st


def arrived(page: str) -> dict[str, str] | None:
    """The link that the address bar holds, where it is not the one that this page wrote or has opened already."""
    here = st.query_params.to_dict()
    if "v" not in here or here == st.session_state.get(_key(page)):
        return None
    st.session_state[_key(page)] = here
    return here


def write(page: str, parameters: Mapping[str, str]) -> None:
    """Put the parameters into the address bar."""
    wanted = dict(parameters)
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)
    st.session_state[_key(page)] = wanted


def _key(page: str) -> str:
    return f"address:{page}"
