"""Saving a diagnosis: what would be saved is shown first; the address and the token that deletes it are shown once."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import streamlit as st

from advisor.report import Report
from advisor.share import Link
from advisor.views.address import absolute, warn_if_local
from advisor.views.words import plain

MAX_TEXT = 200_000  # characters of what was pasted that a session keeps for saving


def store_engine() -> Any:
    """The engine of saved reports; ``None`` where saving is off.

    Raises:
        advisor.database.StoreError: it is set and cannot be used.
    """
    if not os.environ.get("ADVISOR_DATABASE"):  # advisor.database.VARIABLE: SQLAlchemy is loaded only where saving is on
        return None
    from advisor import database

    url = database.configured()
    return None if url is None else database.connected(url)


def texts_of(found: Sequence[tuple[str, str | bytes]]) -> tuple[tuple[str, str], ...]:
    """What was pasted as texts; nothing where it is no text or too long to be kept."""
    if sum(len(content) for _, content in found) > MAX_TEXT:
        return ()
    raw = [(name, content if isinstance(content, str) else content.decode("utf-8", "replace")) for name, content in found]
    return () if any("\0" in content or "\ufffd" in content for _, content in raw) else tuple(raw)


def sender() -> str:
    """Whom the limit per hour counts: the address as the server sees it. It is kept as a salted hash, for an hour."""
    return str(st.context.ip_address or "local")


def show_saving(report: Report, shared: Link, texts: Sequence[tuple[str, str]]) -> None:
    """A popover with what would be saved, for how long, and a button."""
    with st.popover("Save", icon=":material/save:"):
        try:
            engine = store_engine()
        except ValueError as error:
            st.markdown(f"Saving does not work at the moment: {plain(error)}.")
            return
        if engine is None:
            st.markdown("Saving is off on this server. The HTML file holds the whole report, and the link its settings and counters.")
            return
        _form(engine, report, shared, texts)


def _form(engine: Any, report: Report, shared: Link, texts: Sequence[tuple[str, str]]) -> None:
    from advisor import store

    kept = bool(texts)
    with_text = st.checkbox(
        "Save the pasted text with it",
        key="save:text",
        disabled=not kept,
        help="Masked. Without it the settings, the counters and the causes are saved." if kept else "There is no text here, or too much of it.",
    )
    days = st.segmented_control("Keep it for", store.DAYS, default=30, required=True, format_func=lambda d: f"{d} days", key="save:days")
    body = store.body_of(report, shared, texts if with_text and kept else ())
    with st.expander("Exactly this would be saved", icon=":material/visibility:"):
        st.caption("Secrets, user names, hosts and home paths are masked. Look through it: whoever has the address can read it.")
        st.code(json.dumps(body, indent=1, ensure_ascii=False), language=None, wrap_lines=True, height=260)
    st.button("Save this diagnosis", key="save:go", type="primary", on_click=_save, args=(engine, body, days))
    if complaint := st.session_state.pop("save:complaint", None):
        st.warning(plain(complaint), icon=":material/info:")
    if saved := st.session_state.pop("save:done", None):
        id, token = saved
        address = f"{absolute('report')}?id={id}"
        st.markdown(":material/check_circle: Saved. Its address:")
        st.code(address, language=None, wrap_lines=True)
        warn_if_local(address)
        st.markdown("The token that deletes it. It is shown only now:")
        st.code(token, language=None)


def _save(engine: Any, body: dict[str, Any], days: int) -> None:
    from advisor import store

    try:
        st.session_state["save:done"] = store.save(engine, body, days=days, sender=sender())
    except ValueError as error:
        st.session_state["save:complaint"] = f"Not saved: {error}."
