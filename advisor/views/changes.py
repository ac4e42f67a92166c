"""The plan and other single changes, each with its price; those that are ticked are re-estimated together."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from advisor.diagnosis.remedying import OTHERWISE
from advisor.planner.together import Together
from advisor.render import words
from advisor.render.changing import cost, effects, place, sizes
from advisor.report import Report, Step
from advisor.run import Run
from advisor.units import show
from advisor.verdict import needed
from advisor.views.causes import has_page, library_link
from advisor.views.together import key, planned, re_estimated, room, ticked
from advisor.views.words import plain

ANCHOR = "changes"
LINE_SHOWN = 60  # characters: what stands in a sentence without breaking it


def show_first(report: Report) -> None:
    """The one thing to do first, right under the verdict, with a way to its lines."""
    step = next(iter(report.plan.steps), None)
    if step is None or report.verdict in ("fits", "not-memory"):
        return
    price = f" {both} allocated, estimated." if (both := sizes(step)) else ""
    rest = report.plan.steps[1:]
    after = sum(not other.why.startswith(OTHERWISE) for other in rest)
    more = f" {after} more change{'s' if after > 1 else ''} after it." if after else " Or another in its place." if rest else ""
    st.markdown(f":material/arrow_forward: **Change first: {plain(step.title)}.**{_one_line(step)}{price}{more} [To the lines](#{ANCHOR})")


def _one_line(step: Step) -> str:
    """The change itself where it is one short line, so that it need not be looked for."""
    lines = [line for framework in step.settings.values() for line in framework]
    return f" `{lines[0]}`" if len(lines) == 1 and len(lines[0]) <= LINE_SHOWN and "`" not in lines[0] else ""


def show_changes(report: Report, texts: Sequence[tuple[str, str]] = ()) -> None:
    """Summary, the plan's steps (ticked), the alternatives (not ticked), and what the ticked ones come to."""
    plan = report.plan
    if not plan.steps and not plan.alternatives and (not plan.summary or report.verdict == "not-memory"):
        return
    st.header(words.plan_heading(report.verdict), anchor=ANCHOR)
    if plan.summary:
        st.markdown(plain(plan.summary))
    first = planned(plan)
    for number, step in enumerate(plan.steps, 1):
        _step(step, f"{number}. ", step.technique in first)
    others = [s for s in plan.alternatives if s.technique not in {p.technique for p in plan.steps}]
    if others:
        more = st.expander(f"Other changes that would help ({len(others)})", icon=":material/add:", on_change="rerun", key="other-changes")
        if more.open:  # a dozen boxes with code take time to send: only when looked at
            with more:
                st.caption("Each figure is this change alone. Tick several to see what they come to together.")
                for step in others:
                    _step(step, "", False)
    if plan.irreducible:
        st.markdown(plain(plan.irreducible))
    if report.run is not None and report.ledger is not None and (plan.steps or others):
        _sum(report, ticked(plan), texts)
    if plan.runner_up:
        st.caption("The next best plan: " + ", then ".join(plain(s.title) for s in plan.runner_up))


def _step(step: Step, prefix: str, chosen: bool) -> None:
    with st.container(border=True):
        if step.estimated:
            st.session_state.setdefault(key(step.technique), chosen)
            says = f"{_tier(step)} Untick it to see the sum without it."
            st.checkbox(f"**{prefix}{plain(step.title)}**", key=key(step.technique), help=says, persist_state="session")
        else:  # an action: there is no sum for it to be in, and a box that cannot be ticked would only grey it out
            st.markdown(f"**{prefix}{plain(step.title)}**", help=_tier(step))
        st.markdown(_price(step))
        if step.why:
            st.caption(plain(step.why))
        if step.settings and prefix:
            _lines(step)
        elif step.settings:
            with st.popover("Exact lines", icon=":material/content_copy:"):
                _lines(step)
        if has_page("techniques", step.technique):
            library_link("techniques", step.technique, "About this change")


def _lines(step: Step) -> None:
    for framework, lines in step.settings.items():
        st.caption(plain(place(framework)))
        st.code("\n".join(lines), language=None, wrap_lines=True)


def _tier(step: Step) -> str:
    return f"Kind of change: {words.TIERS.get(step.tier, step.tier).lower()}."


def _price(step: Step) -> str:
    facts = []
    if (both := sizes(step)) and step.before_bytes is not None and step.after_bytes is not None:
        saved = step.before_bytes - step.after_bytes
        change = f"saves {show(saved)}" if saved > 0 else f"adds {show(-saved)}" if saved < 0 else "the estimate does not change"
        facts.append(f"**{both}** allocated, estimated ({change})")
    facts += [f":material/check: {says}" if says.startswith("fits") else f":gray-badge[{says}]" if says == "no estimate" else says for says in effects(step)]
    return " · ".join(facts)


def _sum(report: Report, chosen: Sequence[str], texts: Sequence[tuple[str, str]]) -> None:
    assert report.run is not None and report.ledger is not None
    together = re_estimated(report)
    if together is None:
        return
    before, after = report.ledger.peak().bytes, together.ledger.peak().bytes
    with st.container(border=True):
        st.markdown(_says(report, together, before, after, chosen))
        with st.container():  # always there: what stands below keeps its place, and an open part stays open
            for name, why in together.refused:
                st.caption(f"{words.title('techniques', name)} does not go with the others: {plain(why)}")
        _all_lines(report, together.run, len(chosen))
        if chosen and texts:
            _own_files(report, together.run, texts)


def _says(report: Report, together: Together, before: int, after: int, chosen: Sequence[str]) -> str:
    count, plan = len(chosen), report.plan
    inside = {step.technique for step in plan.steps}
    others = [plain(step.title.partition(":")[0]) for step in plan.alternatives if step.technique in chosen and step.technique not in inside]
    among = f", of the other changes {', '.join(others)}" if others else ""  # their boxes may be folded away
    said = f"**With {count} ticked{among}:** {show(before)} → **{show(after)}** allocated" if count else f"**Nothing ticked:** {show(before)} allocated"
    usable = together.run.usable[0] if together.run.usable else report.capacity_bytes
    if usable is not None:
        fit, icon = room(together.ledger, usable)
        said += f"; {show(needed(together.ledger).expected)} with the CUDA context, of {show(usable)} usable. :material/{icon}: {fit}"
    if count and together.step_time_ratio is not None:
        said += f"; {cost(together.step_time_ratio)}"
    return f"{said}."


def _all_lines(report: Report, run: Run, count: int) -> None:
    if count < 2 or report.run is None:
        return
    from advisor.planner.lines import changed_lines

    found = changed_lines(report.run, run)
    if found:
        with st.expander("All ticked changes as lines to copy", icon=":material/content_copy:"):
            for framework, lines in found.items():
                st.caption(plain(place(framework)))
                st.code("\n".join(lines), language=None, wrap_lines=True)


def _own_files(report: Report, run: Run, texts: Sequence[tuple[str, str]]) -> None:
    """The ticked changes as a diff of what was pasted; worked out when it is looked at, because the changed files are read again."""
    opened = st.expander("As a diff of your own files", icon=":material/difference:", on_change="rerun", key="own-files")
    if not opened.open or report.run is None:
        return
    from advisor.own_files import placed
    from advisor.planner.lines import changed_lines

    lines = changed_lines(report.run, run)
    found = placed(texts, report.evidence, lines, report.run.job, run.job)
    with opened:
        if not found.files:
            st.markdown("None of these changes has a place in what was pasted. The lines above say what to set.")
            return
        st.caption("The changed files were read again, and they give these settings.")
        for file in found.files:
            st.code(file.diff, language="diff", wrap_lines=True)
            with st.popover(f"The whole of {plain(file.name)}, changed", icon=":material/content_copy:"):
                st.code(file.after, language=None, height=400)
        for framework, rest in found.left.items():
            st.caption(f"No place for it in what was pasted. {plain(place(framework))}:")
            st.code("\n".join(rest), language=None, wrap_lines=True)
