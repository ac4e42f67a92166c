"""The plan and other single changes, each with its price; those that are ticked are re-estimated together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from advisor.ledger import Ledger
from advisor.render import words
from advisor.render.terminal import cost
from advisor.report import Report, Step
from advisor.run import Run
from advisor.units import show
from advisor.verdict import needed
from advisor.views.causes import has_page, library_link
from advisor.views.words import plain


@dataclass(frozen=True)
class Together:
    """Several changes applied one after the other: the run, its ledger, the ratio of step times, and what could not be applied."""

    run: Run
    ledger: Ledger
    step_time_ratio: float | None
    refused: tuple[tuple[str, str], ...]


def apply_together(run: Run, techniques: Sequence[str]) -> Together | None:
    """The run with all of the techniques, in the order given; ``None`` where it cannot be estimated."""
    from advisor.arithmetic import CannotEstimate, estimate
    from advisor.job import JobError
    from advisor.techniques import NotApplicable, all_techniques

    changed, refused, known = run, [], all_techniques()
    for name in techniques:
        if name not in known or not known[name].estimated:
            continue
        try:
            result = known[name].apply(changed)
        except JobError as error:
            result = NotApplicable(str(error))
        if isinstance(result, NotApplicable):
            refused.append((name, result.reason))
        else:
            changed = result
    try:
        ledger = estimate(changed)
    except CannotEstimate:
        return None
    return Together(changed, ledger, _ratio(run, changed), tuple(refused))


def _ratio(before: Run, after: Run) -> float | None:
    """Time of the same number of tokens, after over before: a smaller batch takes more steps."""
    from advisor.speed import step_time

    first = step_time(before).seconds_per_token
    return step_time(after).seconds_per_token / first if first else None


def show_changes(report: Report, texts: Sequence[tuple[str, str]] = ()) -> None:
    """Summary, the plan's steps (ticked), the alternatives (not ticked), and what the ticked ones come to."""
    plan = report.plan
    if not plan.steps and not plan.alternatives and not plan.summary:
        return
    st.header(words.plan_heading(report.verdict))
    if plan.summary:
        st.markdown(plain(plan.summary))
    ticked: list[str] = []
    for number, step in enumerate(plan.steps, 1):
        if _step(step, f"{number}. ", True):
            ticked.append(step.technique)
    others = [s for s in plan.alternatives if s.technique not in {p.technique for p in plan.steps}]
    if others:
        more = st.expander(f"Other changes that would help ({len(others)})", icon=":material/add:", on_change="rerun", key="other-changes")
        if more.open:  # a dozen boxes with code take time to send: only when looked at
            with more:
                st.caption("Each figure is this change alone. Tick several to see what they come to together.")
                for step in others:
                    _step(step, "", False)
        ticked += [s.technique for s in others if s.estimated and st.session_state.get(f"tick:{s.technique}")]
    if plan.irreducible:
        st.markdown(plain(plan.irreducible))
    if report.run is not None and report.ledger is not None and (plan.steps or others):
        _sum(report, ticked, texts)
    if plan.runner_up:
        st.caption("The next best plan: " + ", then ".join(plain(s.title) for s in plan.runner_up))


def _step(step: Step, prefix: str, ticked: bool) -> bool:
    with st.container(border=True):
        chosen = st.checkbox(
            f"**{prefix}{plain(step.title)}**",
            value=ticked,
            key=f"tick:{step.technique}",
            help=_tier(step),
            disabled=not step.estimated,
            persist_state="session",
        )
        if not step.estimated:
            st.markdown(":gray-badge[an action: no estimate]")
        st.markdown(_price(step))
        if step.why:
            st.caption(plain(step.why))
        if step.settings and ticked:
            _lines(step)
        elif step.settings:
            with st.popover("Exact lines", icon=":material/content_copy:"):
                _lines(step)
        if has_page("techniques", step.technique):
            library_link("techniques", step.technique, "What it does, what can go wrong, how to see that it worked")
    return bool(chosen) and step.estimated


def _lines(step: Step) -> None:
    for framework, lines in step.settings.items():
        st.caption(f"In your {plain(framework)} settings")
        st.code("\n".join(lines), language=_language(lines), wrap_lines=True)


def _tier(step: Step) -> str:
    return f"Kind of change: {words.TIERS.get(step.tier, step.tier).lower()}. Untick it to see the sum without it."


def _price(step: Step) -> str:
    facts = []
    if step.before_bytes is not None and step.after_bytes is not None:
        saved = step.before_bytes - step.after_bytes
        change = f"saves {show(saved)}" if saved > 0 else f"adds {show(-saved)}" if saved < 0 else "the estimate does not change"
        facts.append(f"{show(step.before_bytes)} → **{show(step.after_bytes)}** allocated ({change})")
    if step.step_time_ratio is not None:
        facts.append(cost(step.step_time_ratio))
    if step.estimated:
        facts.append("same results up to rounding" if step.exact else "results change slightly")
    if step.alters_learning:
        facts.append("what is learned may change")
    if step.fits_after:
        facts.append(":material/check: fits from here on")
    return " · ".join(facts)


def _language(lines: Sequence[str]) -> str | None:
    text = "\n".join(lines).lstrip()
    if text.startswith(("{", '"')):
        return "json"
    return "yaml" if ": " in text and "=" not in text.split(":", 1)[0] else "python"


def _sum(report: Report, ticked: Sequence[str], texts: Sequence[tuple[str, str]]) -> None:
    assert report.run is not None and report.ledger is not None
    together = apply_together(report.run, ticked)
    if together is None:
        return
    before, after, need = report.ledger.peak().bytes, together.ledger.peak().bytes, needed(together.ledger).expected
    usable = together.run.usable[0] if together.run.usable else report.capacity_bytes
    with st.container(border=True):
        said = f"**With {len(ticked)} ticked:** {show(before)} → **{show(after)}** allocated" if ticked else f"**Nothing ticked:** {show(before)} allocated"
        if usable is not None:
            high = together.ledger.totals()["device_used"].high
            fit, icon = ("fits", "check_circle") if high <= usable else ("expected to fit, without margin for the estimate's error", "warning")
            fit, icon = (fit, icon) if need <= usable else ("does not fit", "error")
            said += f"; {show(need)} with the CUDA context, of {show(usable)} usable. :material/{icon}: {fit.capitalize()}"
            said += f", {show(abs(usable - need))} {'left' if need <= usable else 'over'}"
        if ticked and together.step_time_ratio is not None:
            said += f"; {cost(together.step_time_ratio)}"
        st.markdown(f"{said}.")
        for name, why in together.refused:
            st.caption(f"{words.title('techniques', name)} does not go with the others: {plain(why)}")
        _all_lines(report, together.run, len(ticked))
        if ticked and texts:
            _own_files(report, together.run, texts)


def _all_lines(report: Report, run: Run, count: int) -> None:
    if count < 2 or report.run is None:
        return
    from advisor.planner.lines import changed_lines

    found = changed_lines(report.run, run)
    if found:
        with st.expander("All ticked changes as lines to copy", icon=":material/content_copy:"):
            for framework, lines in found.items():
                st.caption(plain(framework))
                st.code("\n".join(lines), language=_language(lines), wrap_lines=True)


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
            st.caption(f"No place for it in what was pasted; in your {plain(framework)} settings, where you use them:")
            st.code("\n".join(rest), language=_language(rest), wrap_lines=True)
