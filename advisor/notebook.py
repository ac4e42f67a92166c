"""In a notebook: reports, ledgers and plans show themselves, and ``%%advise`` explains an out-of-memory error of a cell and frees what it held.

``%load_ext advisor.notebook``, then ``%%advise`` as a cell's first line. Nothing leaves the machine; the cells are read, never run again.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from advisor.ledger import Ledger, explain
from advisor.render import words
from advisor.report import Plan, Report
from advisor.units import show

MAX_CELLS = 60  # earlier cells that are read for the settings
MAX_TEXT = 200_000  # characters of them
_STYLE = (
    "<style>.advisor-report table{border-collapse:collapse}.advisor-report td,.advisor-report th{text-align:left;padding:.2rem .6rem;vertical-align:top}"
    ".advisor-report td.n{text-align:right;white-space:nowrap}.advisor-report .bar{display:inline-block;height:.8rem}.advisor-report small{opacity:.75}</style>"
)


def html_of(shown: Report | Ledger | Plan) -> str:
    """What a notebook shows: a fragment with a style of its own, no script, nothing fetched."""
    if isinstance(shown, Report):
        from advisor.render import html

        body = html.report(shown).partition("<body>")[2].rpartition("</body>")[0]
    else:
        body = "".join(_ledger(shown) if isinstance(shown, Ledger) else _plan(shown))
    return f'<div class="advisor-report">{_STYLE}{body}</div>'


def text_of(shown: Report | Ledger | Plan) -> str:
    """The same for a terminal."""
    from advisor.render import terminal
    from advisor.render.paper import Paper

    paper = Paper()
    if isinstance(shown, Report):
        return terminal.report(shown, paper)
    if isinstance(shown, Plan):
        return terminal.plan(shown, paper, "ooms")
    parts = shown.by_part()
    paper.say(f"{show(shown.peak().bytes)} allocated {words.moment(shown.peak().phase)} ({shown.kind})")
    paper.rows([(words.part(part), show(size), size) for part, size in sorted(parts.items(), key=lambda kv: -kv[1])], max(parts.values(), default=1))
    return paper.text()


def _ledger(ledger: Ledger) -> Iterator[str]:
    peak, totals = ledger.peak(), ledger.totals()
    allocated = totals["max_allocated"]
    yield f"<p><b>{show(peak.bytes)}</b> allocated {escape(words.moment(peak.phase))} ({ledger.kind}, {show(allocated.low)} to {show(allocated.high)}); "
    yield f"nvidia-smi would show {show(totals['device_used'].expected)}.</p><table>"
    for part, size in sorted({**ledger.by_part(), "context": ledger.outside("context")}.items(), key=lambda kv: -kv[1]):
        share = 100 * size / max(peak.bytes, 1)
        yield f'<tr><td>{escape(words.part(part))}<td class="n">{show(size)}<td style="width:16rem">'
        yield f'<span class="bar" style="background:{words.colour(part)};width:{share:.1f}%"></span></tr>'
    yield "</table><details><summary>Formulas</summary><ul>"
    for holding in peak.holdings:
        yield f"<li>{escape(holding.name)}: {show(holding.bytes)} = <code>{escape(explain(holding))}</code> <small>{escape(holding.source)}</small></li>"
    yield "</ul></details>"


def _plan(plan: Plan) -> Iterator[str]:
    from advisor.render.changing import place

    yield f"<p>{escape(plan.summary)}</p><ol>"
    for step in plan.steps:
        sizes = f"{show(step.before_bytes)} → {show(step.after_bytes)}" if step.before_bytes is not None and step.after_bytes is not None else "no estimate"
        yield f"<li><b>{escape(step.title)}</b> <small>{sizes}</small><br>{escape(step.why)}"
        for framework, lines in step.settings.items():
            yield f"<p><small>{escape(place(framework))}</small></p><pre>{escape(chr(10).join(lines))}</pre>"
        yield "</li>"
    yield "</ol>"
    if plan.irreducible:
        yield f"<p>{escape(plan.irreducible)}</p>"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is the GPU's (or the host's) memory running out, without importing the library that raised it."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower()[:2000]


def release(error: BaseException) -> None:
    """Let go of every tensor that the exception's frames hold: its own, its causes', and the interpreter's record of the last one."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        chain += [one.__cause__, one.__context__]
        if one.__traceback__ is not None:
            traceback.clear_frames(one.__traceback__)
            for frame, _ in traceback.walk_tb(one.__traceback__):
                frame.f_locals  # noqa: B018  before Python 3.13 whoever printed the traceback left a copy of the locals in the frame; reading it anew empties it
            one.__traceback__ = None
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def explained(error: BaseException, cell: str, earlier: list[str], names: Mapping[str, Any] | None = None) -> Report:
    """The report of an exception, with the cell that raised it, the settings of earlier cells, and the model and optimizer of the notebook's names."""
    from advisor.live import diagnose, found_in

    model, optimizer = found_in(names or {})
    before, room = [], MAX_TEXT
    for source in reversed(earlier[-MAX_CELLS:]):
        room -= len(source)
        if room < 0:
            break
        before.append(_without_magics(source))
    items = [("cell.py", _without_magics(cell)[:MAX_TEXT])]
    if before:
        items.append(("earlier_cells.py", "\n\n".join(reversed(before))))
    return diagnose(items, model=model, optimizer=optimizer, error=error)


def _without_magics(source: str) -> str:
    return "\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in source.splitlines())


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext advisor.notebook``: the cell magic ``%%advise``."""

    def advise(line: str, cell: str) -> Report | None:
        """Run the cell; where memory runs out, explain it and free what the exception held. The report is also in ``_``."""
        del line
        result = shell.run_cell(cell)
        error = result.error_in_exec
        if error is None or not is_out_of_memory(error):
            return None
        report = explained(error, cell, [str(source) for source in shell.user_ns.get("In", [])[:-1]], shell.user_ns)
        result.error_in_exec = None
        release(error)
        return report

    shell.register_magic_function(advise, "cell", "advise")


__all__ = ["explained", "html_of", "is_out_of_memory", "load_ipython_extension", "release", "text_of"]
