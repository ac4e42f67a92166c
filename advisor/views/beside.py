"""Two ledgers of one run side by side at the same moment, part by part, and in words where they differ."""

from __future__ import annotations

import streamlit as st
from msgspec import Struct

from advisor.beside import phases_as, same_moment
from advisor.ledger import Holding, Ledger, explain
from advisor.render import words
from advisor.units import MIB, show
from advisor.views.words import plain, table

WORTH = 0.01  # of the peak: a difference below it is rounding of sizes by the allocator, and not explained
LEAST = 32 * MIB


class Row(Struct, frozen=True):
    """A part, or a phase, in each ledger, bytes."""

    name: str
    first: int
    second: int

    @property
    def difference(self) -> int:
        """Bytes that the second has more."""
        return self.second - self.first


def parts_beside(first: Ledger, second: Ledger) -> tuple[Row, ...]:
    """Every part that one of them has at that moment; the largest difference first. The differences add up to that of the two sums."""
    one, other = same_moment(first, second)
    ours, theirs = first.by_part(one.moment.id), second.by_part(other.moment.id)
    rows = (Row(part, ours.get(part, 0), theirs.get(part, 0)) for part in {**ours, **theirs})
    return tuple(sorted(rows, key=lambda r: (-abs(r.difference), -r.first)))


def phases_beside(first: Ledger, second: Ledger) -> tuple[Row, ...]:
    """The largest moment of each phase that both have, in the order of a step."""
    rows = (Row(phase, size, second.peak(phases_as(first, phase)).bytes) for phase, size in first.phases().items())
    return tuple(row for row in rows if row.first and row.second)


def reasons(first: Ledger, second: Ledger) -> list[str]:
    """Why they differ, as far as the two ledgers show it; sentences in Markdown, the first about the largest difference."""
    said: list[str] = []
    ours, theirs = same_moment(first, second)
    if theirs.phase not in phases_as(first, ours.phase):
        said.append(
            f"The largest moment is {words.moment(ours.phase)} when {first.kind} and {words.moment(theirs.phase)} when {second.kind}: "
            "a part may be alive in one of the moments and not in the other."
        )
    floor = max(LEAST, WORTH * ours.bytes)
    for row in parts_beside(first, second):
        if abs(row.difference) < floor:
            break
        more, less = (second, first) if row.difference > 0 else (first, second)
        held, against = (theirs, ours) if row.difference > 0 else (ours, theirs)
        names, others = _largest(held.holdings, row.name), _largest(against.holdings, row.name)
        counted = f"{less.kind.capitalize()} there: {others}" if others else f"Nothing of it is {less.kind} at that moment"
        said.append(f"**{words.part(row.name)}**: {show(abs(row.difference))} more {more.kind}. {more.kind.capitalize()}: {names}. {counted}.")
    return said


def _largest(holdings: tuple[Holding, ...], part: str, count: int = 3) -> str:
    found = [h for h in holdings if h.part == part and h.bytes]
    listed = ", ".join(f"{plain(h.name)} {show(h.bytes)}" for h in found[:count])
    return f"{listed} and {len(found) - count} smaller" if len(found) > count else listed


def show_beside(first: Ledger, second: Ledger) -> None:
    """Each phase, then the parts of the largest moment, what explains the difference, and the formulas of what differs most."""
    heads = (first.kind.capitalize(), second.kind.capitalize(), "Difference")
    ours, theirs = same_moment(first, second)
    if phases := phases_beside(first, second):
        cells = [(words.phase(r.name), show(r.first), show(r.second), _signed(r.difference)) for r in phases]
        st.markdown(table(("Largest moment of", *heads), cells, right=(1, 2, 3)))
    rows = parts_beside(first, second)
    total = Row("all", ours.bytes, theirs.bytes)
    cells = [(words.part(r.name), show(r.first), show(r.second), _signed(r.difference)) for r in rows]
    cells.append(("**Allocated together**", f"**{show(total.first)}**", f"**{show(total.second)}**", f"**{_signed(total.difference)}**"))
    st.markdown(table((words.moment(ours.phase).capitalize(), *heads), cells, right=(1, 2, 3)))
    said = reasons(first, second)
    st.markdown("\n".join(f"- {text}" for text in said) if said else "No part differs by more than the allocator's rounding.")
    formulas = [h for r in rows[:2] for h in theirs.holdings if h.part == r.name and h.bytes][:6]
    if said and formulas:
        with st.expander("The formulas behind what differs most", icon=":material/function:"):
            for holding in formulas:
                st.markdown(f"{plain(holding.name)}: **{show(holding.bytes)}**")
                st.code(explain(holding), language=None, wrap_lines=True)
                st.caption(plain(f"Source: {holding.source}." + (f" Known error: {holding.error}." if holding.error else "")))


def _signed(size: int) -> str:
    return "0" if not size else f"{'+' if size > 0 else '−'}{show(abs(size))}"
