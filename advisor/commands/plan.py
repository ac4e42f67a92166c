"""``advisor plan JOB``: the least set of changes that makes a job fit, re-estimated together."""

from __future__ import annotations

import argparse

from advisor.cli import UserError
from advisor.commands import allowed, files, jobfile, options, output


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("job", metavar="JOB", type=files.named, help="a job file (YAML or JSON, 'version: 1'); - reads standard input")
    options.add_json(parser)
    solving = parser.add_argument_group("other questions", "in place of the plan")
    solving.add_argument("--limits", action="store_true", help="the largest micro batch, the longest sequence and the largest known model that this card holds")
    solving.add_argument("--before", action="store_true", help="before the run: which cards hold it, hours, cost, host memory, disk for checkpoints")
    solving.add_argument("--tokens", type=float, metavar="N", help="tokens of the whole run, e.g. 5e9 (else batch.total_tokens)")
    solving.add_argument("--price", action="append", default=[], metavar="CARD=X", help="one card for an hour, in any one currency; may be repeated")
    solving.add_argument("--budget", type=float, metavar="X", help="money that the run may cost")
    solving.add_argument("--hours", type=float, metavar="H", help="hours that the run may take")
    parser.add_argument("--fewer", action="store_true", help="also the fewest of these cards that would do, with which changes and at what time of a step")
    parser.add_argument("--strict", action="store_true", help="exit with 1 also when it is tight")
    allowed.add(parser)
    options.add_overrides(parser)


BEFORE = ("tokens", "price", "budget", "hours")  # options of --before


def _asked_together(args: argparse.Namespace) -> None:
    """Refuse what would be left unanswered.

    Raises:
        UserError: an option without the question that it belongs to, or two questions at once.
    """
    options.amount("--tokens", args.tokens, "tokens")
    options.amount("--hours", args.hours, "hours")
    options.amount("--budget", args.budget, "units of money")
    alone = next((name for name in BEFORE if getattr(args, name) not in (None, []) and not args.before), None)
    if alone is not None:
        raise UserError(f"--{alone} belongs to --before (hours and cost before the run); add --before, or leave it out")
    if args.limits and args.before:
        raise UserError("--limits and --before are two questions; ask one at a time")
    if args.strict and (args.limits or args.before):
        raise UserError("--strict judges the plan; it has no meaning with --limits or --before")
    if args.fewer and (args.limits or args.before):
        raise UserError("--fewer belongs to the plan; it has no meaning with --limits or --before")
    if allowed.given(args) and args.limits:
        raise UserError("what a plan may do has no meaning with --limits")
    if args.budget is not None and not args.price:
        raise UserError("--budget needs the price of a card for an hour, e.g. --price a100-80gb=2.0")


def run(args: argparse.Namespace) -> int:
    """Resolve, plan, print; the exit code is the verdict of the job as it stands."""
    from advisor.planning import plan
    from advisor.report import EXIT_CODES
    from advisor.verdict import of_run

    _asked_together(args)
    resolved = jobfile.resolved_job(args)
    if args.limits or args.before:
        from advisor.commands import foretelling

        return foretelling.limits(resolved, as_json=args.json) if args.limits else foretelling.before(resolved, args)
    ledger, verdict, sentence = of_run(resolved)
    allow, margin = allowed.of(args)
    found = plan(resolved, allow=allow, margin_bytes=margin)
    if args.fewer:
        found = allowed.with_fewer(found, resolved, allow, margin)
    if args.json:
        from advisor.render import json

        output.write(json.text(json.of_plan(found, resolved, ledger, verdict)) + "\n")
    else:
        from advisor.render import terminal, words

        paper = output.sheet()
        paper.say(f"{words.VERDICTS[verdict]}. {sentence}", "bold")
        output.write(terminal.plan(found, paper, verdict))
    return 1 if args.strict and verdict == "tight" else EXIT_CODES[verdict]
