"""``advisor check JOB --budget 70GiB``: whether a job stays within a budget, for CI."""

from __future__ import annotations

import argparse

from advisor.cli import UserError
from advisor.commands import baseline, files, jobfile, options


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("job", metavar="JOB", type=files.named, help="a job file (YAML or JSON, 'version: 1'); - reads standard input")
    parser.add_argument("--budget", required=True, metavar="SIZE", help="what a card may hold at most, context included, e.g. 70GiB")
    parser.add_argument("--strict", action="store_true", help="judge by the high end of the estimate, not by the expected figure")
    baseline.add_forms(parser)
    options.add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    """Estimate and compare; exit code 1 where it is over."""
    from advisor.annotating import Check
    from advisor.units import read_size, show
    from advisor.verdict import needed, of_run

    budget = read_size(args.budget)
    if budget is None or not budget.bytes:
        raise UserError(f"--budget {args.budget!r} is no size; write it like 70GiB")
    if args.budget.strip().replace(".", "", 1).isdigit():
        raise UserError(f"--budget {args.budget} has no unit; {args.budget.strip()}GiB is probably meant")
    baseline.guard_junit(args, args.job)
    resolved = jobfile.resolved_job(args)
    ledger, _, sentence = of_run(resolved)
    if ledger is None or resolved.missing:
        print(f"advisor: {sentence}")
        return 3
    need = needed(ledger)
    judged = need.high if args.strict else need.expected
    says = f"{show(need.expected)} in {ledger.peak().phase} (estimated, {show(need.low)} to {show(need.high)}) of {show(budget.bytes)}"
    over = judged > budget.bytes
    judging = "the high end of the range, which --strict judges by," if args.strict else "what is expected"
    failed = f"{says}: {judging} is {show(judged - budget.bytes)} over the budget" if over else None
    baseline.report(
        args, "memory budget", [Check(f"within {args.budget}" if over else f"within {args.budget}: {says}", failed)], None if args.job == "-" else args.job
    )
    return 1 if over else 0
