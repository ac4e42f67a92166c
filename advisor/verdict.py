"""Whether a ledger fits its card, in the contract's words: the one rule for every command and page."""

from __future__ import annotations

from advisor.ledger import Interval, Ledger
from advisor.render import words
from advisor.report import Verdict
from advisor.run import Run
from advisor.units import show


def of_run(run: Run) -> tuple[Ledger | None, Verdict, str]:
    """The ledger, the verdict and its sentence; no ledger where a deciding fact is not known."""
    from advisor.arithmetic import CannotEstimate, estimate

    try:
        ledger = estimate(run)
    except CannotEstimate as error:
        return None, "incomplete", f"{error}"[:1].upper() + f"{error}"[1:].rstrip(".") + "."
    return ledger, *judge(run, ledger)


def judge(run: Run, ledger: Ledger) -> tuple[Verdict, str]:
    """The verdict and its sentence.

    fits: the high end of what the device will show is below the usable capacity. tight: the expected figure is below, the high
    end is not. ooms: the expected figure is above. incomplete: a deciding fact, or the card, is not known.
    """
    peak = ledger.peak()
    if run.missing or not ledger.holdings:
        what = ", ".join(run.missing) or "the model"
        return "incomplete", f"What decides is missing: {what}."
    need, used = needed(ledger), ledger.totals()["device_used"]
    says = f"{show(need.expected)} at the peak {words.moment(peak.phase)} ({ledger.kind}, {show(need.low)} to {show(need.high)})"
    if run.usable is None:
        return "incomplete", f"It needs {says}; name the card (hardware.gpu) to know whether that fits."
    usable = run.usable[0]
    if used.high <= usable:
        return "fits", f"It needs {says} of {show(usable)} usable."
    if used.expected <= usable:
        return "tight", f"It needs {says} of {show(usable)} usable: expected to fit, with no margin for the estimate's error."
    return "ooms", f"It needs {says}, {show(used.expected - usable)} more than the {show(usable)} usable."


def needed(ledger: Ledger) -> Interval:
    """What must be on the card at once: tensors and the context. PyTorch's cache comes on top, and gives way when the card is full."""
    allocated, context = ledger.totals()["max_allocated"], ledger.outside("context")
    return Interval(allocated.low + context, allocated.expected + context, allocated.high + context)
