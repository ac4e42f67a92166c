"""The address bar as the page's memory: what a reader arrives with is opened once, and what the page comes to is written there."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import streamlit as st

from advisor import knowledge

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


def absolute(page: str = "") -> str:
    """The address of a page of this app as the reader's browser reaches it: behind a proxy it may begin with a path of its own."""
    here = urlsplit(st.context.url or "http://localhost:8501/")
    path = [piece for piece in here.path.split("/") if piece]
    if path and path[-1] in {file.stem for file in knowledge.folder("pages").glob("*.py")}:
        path.pop()
    return f"{here.scheme}://{here.netloc}/" + "/".join([*path, page] if page else [*path, ""] if path else [])


def warn_if_local(address: str) -> None:
    """Says so where nobody else can open an address."""
    if urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1"):
        st.caption(":material/warning: This address is only on your computer: nobody else can open it.")


def _key(page: str) -> str:
    return f"address:{page}"
