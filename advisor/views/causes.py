"""Causes, most likely first, each with what speaks for it and against it."""

from __future__ import annotations

from functools import cache

import streamlit as st

from advisor import knowledge
from advisor.render import words
from advisor.report import Finding, Report
from advisor.views.words import plain

FIRST_SHOWN = 4


def show_causes(report: Report) -> None:
    """The ranked list; the first is open."""
    st.header(words.why_heading(report.verdict))
    if not report.findings:
        st.markdown("No cause stands out from what was pasted.")
        return
    for number, finding in enumerate(report.findings[:FIRST_SHOWN]):
        _cause(finding, opened=number == 0)
    if len(report.findings) > FIRST_SHOWN:
        with st.expander(f"{len(report.findings) - FIRST_SHOWN} less likely"):
            for finding in report.findings[FIRST_SHOWN:]:
                st.markdown(f"- {plain(finding.title)}: {words.likely(finding.confidence)}")


def _cause(finding: Finding, *, opened: bool) -> None:
    with st.expander(f"{plain(finding.title)} :gray-badge[{words.likely(finding.confidence)}]", expanded=opened):
        lines = []
        for says in words.distinct(finding.evidence)[:8]:
            icon, word = (":material/add_circle:", "for") if says.speaks_for else (":material/do_not_disturb_on:", "against")
            where = f" `{says.where.replace('`', '')}`" if says.where else ""
            lines.append(f"{icon} **{word}** {plain(says.says)}{where}")
        st.markdown("\n\n".join(lines))  # in one piece: each piece of a page is a message of its own
        if effect := words.remedy(finding.saves_bytes):
            st.markdown(f"{effect[0].upper()}{effect[1:]}.")
        if has_page("causes", finding.cause):
            library_link("causes", finding.cause, "Read about this cause")


@cache
def has_page(kind: str, name: str) -> bool:
    """Whether the library has a page of this name."""
    return knowledge.path(kind, f"{name}.md").is_file()


def library_link(kind: str, name: str, label: str) -> None:
    """A link to a page of the library."""
    st.page_link(knowledge.folder("pages") / "library.py", label=label, icon=":material/menu_book:", query_params={"kind": kind, "page": name})


def show_others(report: Report) -> None:
    """Cleared, not applicable, could not tell: counted, and folded away."""
    if report.could_not_tell:
        with st.expander(f"Could not tell ({len(report.could_not_tell)})", icon=":material/help:"):
            st.markdown("\n".join(f"- {words.title('causes', c.cause)}: {plain(c.needs)}" for c in report.could_not_tell))
    if report.cleared:
        with st.expander(f"Looked for and not found ({len(report.cleared)})", icon=":material/check_circle:"):
            st.markdown("\n".join(f"- {plain(says)}" for _, says in report.cleared))
    if report.not_applicable:
        with st.expander(f"Does not apply to this run ({len(report.not_applicable)})", icon=":material/remove_circle:"):
            st.markdown("\n".join(f"- {words.title('causes', cause)}: {plain(why)}" for cause, why in report.not_applicable))
