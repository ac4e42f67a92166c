"""``advisor estimate JOB``: the ledger of a job file."""

from __future__ import annotations

import argparse

from advisor.cli import UserError
from advisor.commands import files, jobfile, options, output


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from advisor.ledger import PARTS, PHASES

    parser.add_argument("job", metavar="JOB", type=files.named, help="a job file (YAML or JSON, 'version: 1'); - reads standard input")
    options.add_json(parser)
    parser.add_argument("--explain", choices=PARTS, metavar="PART", help=f"the formulas of one part with this job's numbers: {', '.join(PARTS)}")
    parser.add_argument("--phase", choices=PHASES, metavar="PHASE", help=f"look at the largest moment of one phase: {', '.join(PHASES)}")
    parser.add_argument("--strict", action="store_true", help="exit with 1 also when it is tight")
    options.add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    """Resolve, estimate, print; the exit code is the verdict's."""
    from advisor.report import EXIT_CODES
    from advisor.verdict import of_run

    resolved = jobfile.resolved_job(args)
    ledger, verdict, sentence = of_run(resolved)
    if args.phase is not None and ledger is not None and args.phase not in ledger.phases():
        raise UserError(f"--phase {args.phase}: this job has no such phase; it has {', '.join(ledger.phases())}")
    if args.json:
        from advisor.render import json

        output.write(json.text(json.of_ledger(resolved, ledger, verdict, sentence)) + "\n")
    else:
        from advisor.render import terminal

        output.write(terminal.estimate(resolved, ledger, verdict, sentence, output.sheet(), part=args.explain, phase=args.phase))
    return 1 if args.strict and verdict == "tight" else EXIT_CODES[verdict]
