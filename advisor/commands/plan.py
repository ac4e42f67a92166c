"""``advisor plan JOB``: the least set of changes that makes a job fit, re-estimated together."""

from __future__ import annotations

import argparse

from advisor.commands import jobfile, options, output


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("job", metavar="JOB", help="a job file (YAML or JSON, 'version: 1'); - reads standard input")
    options.add_json(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 also when it is tight")
    options.add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    """Resolve, plan, print; the exit code is the verdict of the job as it stands."""
    from advisor.planning import plan
    from advisor.report import EXIT_CODES
    from advisor.verdict import of_run

    resolved = jobfile.resolved_job(args)
    ledger, verdict, sentence = of_run(resolved)
    found = plan(resolved)
    if args.json:
        from advisor.render import json

        output.write(json.text(json.of_plan(found, resolved, ledger, verdict)) + "\n")
    else:
        from advisor.render import terminal, words

        paper = output.sheet()
        paper.say(f"{words.VERDICTS[verdict]}. {sentence}", "bold")
        output.write(terminal.plan(found, paper, verdict))
    return 1 if args.strict and verdict == "tight" else EXIT_CODES[verdict]
