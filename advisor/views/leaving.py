"""What a reader leaves with: the link, Markdown for an issue, lines for a chat, one HTML page, JSON."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from advisor.render import chat, html, json, markdown
from advisor.render.measured import Figure
from advisor.report import Report
from advisor.share import Link
from advisor.views.address import absolute, warn_if_local
from advisor.views.kept import kept
from advisor.views.saving import show_saving
from advisor.views.words import plain


def show_leaving(report: Report, shared: Link, texts: Sequence[tuple[str, str]] = (), measured: Figure | None = None) -> None:
    """Link, downloads and saving, all from the same report; ``texts`` is what was pasted, ``measured`` what was measured of the run."""
    st.header("Take it with you")
    with st.container(horizontal=True):
        st.download_button(
            "Markdown",
            lambda: markdown.report(report, measured),
            "diagnosis.md",
            "text/markdown",
            on_click="ignore",
            icon=":material/description:",
            help="For an issue or a wiki",
        )
        st.download_button(
            "HTML",
            lambda: html.report(report, measured),
            "diagnosis.html",
            "text/html",
            on_click="ignore",
            icon=":material/web:",
            help="One page that opens offline",
        )
        st.download_button(
            "JSON",
            lambda: json.text(json.of_report(report, measured)),
            "diagnosis.json",
            "application/json",
            on_click="ignore",
            icon=":material/data_object:",
            help="Everything, for programs",
        )
        if report.run is not None:
            job = kept("job file", (report.run,), report.run.stated.to_yaml)
            st.download_button(
                "Job file",
                job,
                "job.yaml",
                "application/yaml",
                on_click="ignore",
                icon=":material/settings:",
                help="The settings, for advisor estimate and advisor plan",
            )
        with st.popover("Link", icon=":material/link:"):
            _link(shared)
        show_saving(report, shared, texts)
        with st.popover("Lines for a chat", icon=":material/chat:"):
            st.code(kept("chat", (report, measured), lambda: chat.report(report, measured)), language=None, wrap_lines=True)


def _link(shared: Link) -> None:
    if not shared.fits:
        st.markdown("This run has more settings than an address can carry safely. Take the file instead: dropped on this page it does the same.")
        st.download_button("Link as a file", shared.query, "diagnosis-link.txt", "text/plain", on_click="ignore", icon=":material/link:")
        return
    address = f"{absolute()}?{shared.query}"
    st.code(address, language=None, wrap_lines=True)
    st.caption("Holds the settings and the error's counters, never its text. Whoever opens it gets the same diagnosis, computed again.")
    warn_if_local(address)
    for text in shared.left_out:
        st.caption(f"Left out: {plain(text)}")
