"""Two jobs side by side: what is set differently, and what that does to each part of memory."""

from __future__ import annotations

import streamlit as st

from advisor.arithmetic import CannotEstimate, estimate
from advisor.evidence import Evidence
from advisor.job import Job, fields
from advisor.render import words
from advisor.run import Run, resolve
from advisor.share import link, open_link
from advisor.units import show, signed
from advisor.verdict import needed
from advisor.views.words import plain, table

KEPT = "explore-beside"  # the other job, as the query of its link


def differences(first: Job, second: Job) -> list[tuple[str, object, object]]:
    """Fields that are set differently: (path, first, second)."""
    return [(path, first.get(path), second.get(path)) for path in fields() if path not in ("version", "name") and first.get(path) != second.get(path)]


def show_comparison(run: Run) -> None:
    """Keep the run as it is, change it, and see both."""
    here = link(run.stated, Evidence()).query
    st.button("Compare with the run as it is now", key="explore-keep", icon=":material/push_pin:", on_click=_keep, args=(here,))
    kept = st.session_state.get(KEPT)
    if kept is None:
        st.markdown("Keep this run, then change settings: both are shown side by side.")
        return
    other = resolve(open_link(kept).job, Evidence())
    changed = differences(other.stated, run.stated)
    if not changed:
        st.markdown("Kept. Now change a setting.")
        return
    rows = [(words.field(p), plain(words.value(a)), plain(words.value(b))) for p, a, b in changed]
    st.markdown(table(("Setting", "Kept", "Now"), rows))
    try:
        before, after = estimate(other), estimate(run)
    except CannotEstimate as error:
        st.markdown(plain(error))
        return
    ours, theirs = before.by_part(), after.by_part()
    parts = [(words.part(p), ours.get(p, 0), theirs.get(p, 0)) for p in {**ours, **theirs}]
    cells = [(name, show(a), show(b), signed(b - a) if a != b else "0") for name, a, b in sorted(parts, key=lambda r: -abs(r[2] - r[1]))]
    total = needed(before).expected, needed(after).expected
    cells.append(("**Needed together**", f"**{show(total[0])}**", f"**{show(total[1])}**", f"**{signed(total[1] - total[0])}**"))
    heads = ("At the peak", f"Kept, {words.moment(before.peak().phase)}", f"Now, {words.moment(after.peak().phase)}", "Difference")
    st.markdown(table(heads, cells, right=(1, 2, 3)))


def _keep(query: str) -> None:
    st.session_state[KEPT] = query
