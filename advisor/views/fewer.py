"""What would hold the run on fewer cards: worked out when it is looked at, because every number of cards is a search of its own."""

from __future__ import annotations

import streamlit as st

from advisor.planner.constraints import Constraints
from advisor.planner.fewer import fewer_cards
from advisor.render.changing import place
from advisor.render.fewer import NONE, NOT_ASKED, sentence
from advisor.report import Plan, Report
from advisor.run import Run
from advisor.views.kept import kept
from advisor.views.words import plain


def show_fewer(report: Report, allow: Constraints, margin_bytes: int | None) -> None:
    """The fewest cards that would do, with the lines; nothing where the question has no answer."""
    with st.container():  # always there: what stands below keeps its place, and an open part stays open
        if report.run is not None and report.run.world > 1 and report.plan.fits:
            _box(report.run, report.plan, allow, margin_bytes)


def _box(run: Run, plan: Plan, allow: Constraints, margin_bytes: int | None) -> None:
    opened = st.expander("What would hold it on fewer cards", icon=":material/compress:", on_change="rerun", key="fewer-cards")
    if not opened.open:
        return
    found = kept("fewer", (run, plan), lambda: fewer_cards(run, plan, allow=allow, margin_bytes=margin_bytes))
    with opened:
        if not found:
            st.markdown(NONE if found is not None else NOT_ASKED)
            return
        for number, answer in enumerate(found):
            st.markdown(plain(sentence(answer, first=number == 0)))
            for framework, lines in answer.lines.items():
                st.caption(plain(place(framework)))
                st.code("\n".join(lines), language=None, wrap_lines=True)
        st.caption("Cards of the same kind; the samples of a step are kept by accumulation. Start as many processes as there are cards.")
