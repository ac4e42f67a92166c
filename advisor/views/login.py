"""Logging in before any page, where the server asks for it (ADVISOR_LOGIN): Streamlit's own OpenID Connect."""

from __future__ import annotations

import os

import streamlit as st


def asked() -> bool:
    """Whether this server asks for a login."""
    return os.environ.get("ADVISOR_LOGIN", "").lower() in ("1", "on", "yes", "true")


def admitted() -> bool:
    """Whether the reader may see the pages; else a button to log in is shown, or what the server lacks for it."""
    if not asked():
        return True
    logged_in = getattr(st.user, "is_logged_in", None)
    if logged_in:
        return True
    st.title("Training memory advisor")
    if logged_in is None:
        st.error(
            "ADVISOR_LOGIN is set, and no identity provider is: secrets.toml needs a section [auth]. See the guide on running it for a team.",
            title="Nobody can log in",
            icon=":material/lock:",
        )
        return False
    st.button("Log in", type="primary", icon=":material/login:", on_click=st.login)
    return False
