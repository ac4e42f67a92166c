"""The address bar as the page's memory: what a reader arrives with is opened once, and what the page comes to is written there."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

_PAGE = "address of page"  # which page ran last


def arrived(page: str) -> dict[str, str] | None:
    """The link that the address bar holds, where it is not the one that this page wrote or has opened already.

    An empty mapping: the reader went back to the page as it was before anything was on it. (Coming from another page through the
    menu empties the address too; then the page keeps what it shows and writes its address again.)
    """
    here, last = st.query_params.to_dict(), st.session_state.get(_key(page)) or {}
    still = stayed(page)
    if here == last or ("v" not in here and not (last and still)):
        return None
    st.session_state[_key(page)] = here if "v" in here else {}
    return here if "v" in here else {}


def stayed(page: str) -> bool:
    """Whether this page also ran last: then an emptied address is the browser's back button, not the menu. Asked once a run."""
    still = st.session_state.get(_PAGE) == page
    st.session_state[_PAGE] = page
    return still


def write(page: str, parameters: Mapping[str, str]) -> None:
    """Put the parameters into the address bar."""
    wanted = dict(parameters)
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)
    st.session_state[_key(page)] = wanted


def _key(page: str) -> str:
    return f"address:{page}"
