"""``advisor accuracy FILE…``: the estimator against measurements, case by case."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor.cli import UserError
from advisor.commands import files, options, output


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="measurement files or folders of them; without any: those that travel with the advisor")
    options.add_json(parser)
    parser.add_argument("--only", metavar="PATTERN", help="only cases whose id matches this pattern (as in fms-*-lora, or a part of the id)")
    parser.add_argument("--by", choices=("estimate", "probe"), default="estimate", help="which way to the ledger is judged")
    parser.add_argument("--install-versions", action="store_true", help="with --by probe: let pip fetch each job's versions of the libraries into a cache")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="with --by probe: end a case after this long (default 600)")
    parser.add_argument("--worst", type=int, default=15, metavar="N", help="how many cases to list, worst first (default 15)")


def run(args: argparse.Namespace) -> int:
    """Score and print; the exit code is 0 unless something could not be read."""
    from advisor import accuracy, knowledge

    measured = _files(args.files or [str(knowledge.path("measurements"))])
    try:
        with _predictor(args) as chosen:
            result: dict[str, Any] = {"by": args.by, **accuracy.score(measured, only=_pattern(args.only), **chosen)}
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    if args.only is not None and not result["n"] and not result["skipped"]:
        raise UserError(f"--only {args.only!r}: no case's id matches; without --only every id is listed (--worst 1000)")
    if args.json:
        from advisor.render import json

        output.write(json.text(result) + "\n")
        return 0
    paper = output.sheet()
    skipped = result["skipped"]
    cases = sorted((c for c in result["cases"] if c.get("ape") is not None), key=lambda c: -c["ape"])
    paper.say(f"{result['n']} of {result['n'] + len(skipped)} measured runs estimated, {len(skipped)} skipped with a reason.", "bold")
    if args.by == "probe" and (seen := result["by_kind"].get("probed")):
        paper.say(
            f"{seen['n']} probed: median error {seen['median_ape']:.3f} %, nine in ten within {_percent(seen['p90_ape'])}; for the rest the estimate stands in."
        )
    if cases:
        paper.say(
            f"Median error {_percent(result['median_ape'])}, nine in ten within {_percent(result['p90_ape'])}, bias {_percent(result['bias'], signed=True)}, "
            f"inside the stated interval {_share(result['inside_interval'])}, said to fit and did not: {result['false_fits']}."
        )
        paper.heading("Worst first: measured, predicted (low to high), error")
        for case in cases[: max(0, args.worst)]:
            predicted = f"{case['predicted_gib']:.1f} GiB ({case['low_gib']:.1f} to {case['high_gib']:.1f} GiB)"
            paper.say(f"{case['id']}: {case['measured_gib']:.1f} GiB, {predicted}, {_percent(case['ape'])}", indent=2, hang=4)
    if skipped:
        paper.heading("Skipped")
        reasons: dict[str, int] = {}
        for item in skipped:
            reasons[item["why"]] = reasons.get(item["why"], 0) + 1
        for why, count in sorted(reasons.items(), key=lambda kv: -kv[1])[:12]:
            paper.say(f"{count}: {why}", indent=2, hang=6)
    output.write(paper.text())
    return 0


@contextlib.contextmanager
def _predictor(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The probe as the predictor where it is asked for: one process for all jobs; each case's progress goes to standard error."""
    if args.by == "estimate":
        yield {}
        return
    from advisor.simulation.scoring import predictor
    from advisor.simulation.sessions import Session

    with Session() as session:
        say = functools.partial(print, "probe:", file=sys.stderr, flush=True)
        yield {"predict": predictor(session, install_versions=args.install_versions, timeout=args.timeout, say=say)}


def _pattern(only: str | None) -> str | None:
    """A pattern for fnmatch: a plain text is looked for anywhere in the id."""
    return only if only is None or any(sign in only for sign in "*?[") else f"*{only}*"


def _percent(value: float | None, *, signed: bool = False) -> str:
    """Errors come in percent."""
    if value is None:
        return "not known"
    return f"{value:+.1f} %" if signed and round(value, 1) else f"{value:z.1f} %"  # nothing has no sign


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.0%}"


def _files(names: list[str]) -> list[Path]:
    out: list[Path] = []
    for name in names:
        path = files.readable(name)
        if path.is_dir():
            out.extend(sorted(path.glob("*.y*ml")))
        elif path.is_file():
            out.append(path)
        else:
            raise UserError(f"{name}: there is no such file")
    if not out:
        raise UserError(f"no measurement file (*.yaml) in {', '.join(names)}")
    return out
