"""The server's one worker for what takes a core, gigabytes or the GPU: probes and measurements, one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import streamlit as st


@st.cache_resource(show_spinner=False)
def pool() -> ThreadPoolExecutor:
    """One thread, shared by all sessions."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="probe")
