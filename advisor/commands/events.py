"""``advisor events LOG``: what a watched run (:func:`advisor.watch`) found, from its log."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from advisor.cli import UserError
from advisor.commands import files, options, output

LAYERS = 5  # of the gradients


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("log", metavar="LOG", type=files.readable, help="the events file that advisor.watch(..., log=LOG) wrote")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Summarise; exit code 1 where a warning was logged."""
    from advisor.measurement import summing
    from advisor.units import show

    data = summary(args.log)
    if args.json:
        from advisor.render import json

        output.write(json.text(data) + "\n")
        return 1 if data["warnings"] else 0
    paper = output.sheet()
    ended = "to its end" if data["ended"] else "not to its end: the process was killed, or still runs"
    paper.say(f"{data['events']} events, {data['steps']} steps observed, logged {ended}.", "bold")
    for label in ("warnings", "notes"):
        if data[label]:
            paper.heading(label.capitalize())
        for finding in data[label]:
            paper.say(
                f"{finding.get('where') or '(place not known)'}: {finding['title']} [{finding['cause']}, step {finding.get('step', 0)}]", indent=2, hang=4
            )
    for failure in data["failures"]:
        said = failure.get("error") or failure.get("phase") or ""
        paper.say(f"{failure['kind']}: {said}, step {failure.get('step', 'not known')}".replace(": ,", ","), indent=2, hang=4)
    if data["peaks"]:
        paper.heading("Largest live size by phase")
        for phase, size in data["peaks"].items():
            paper.say(f"{phase}: {show(size)}", indent=2)
    if rows := summing.by_part(data):
        paper.heading("By part: stored, resident, peak live")
        for part, *sizes in rows:
            saved, *held = ("" if size is None else show(size) for size in sizes)
            paper.say(f"{part}: {', '.join([saved or 'not saved', *(size or 'not known' for size in held)])}", indent=2)
    if data["gradients"]:
        paper.heading("Gradients with most zeros, at the last look")
        for layer, rates in [*data["gradients"].items()][:LAYERS]:
            paper.say(f"{layer}: {rates['zero']:.1%} zeros, {rates['subnormal']:.1%} of the others subnormal", indent=2)
    if (seen := data["checkpoints"])["compared"] or seen["not_compared"]:
        paper.heading("Checkpoints run once more, with and without recomputing")
        if seen["compared"]:
            wrong = f"{seen['differ']} with other gradients" if seen["differ"] else "all with the same gradients"
            paper.say(f"{seen['compared']} times, {wrong}, {seen['exact']} bit for bit; each held at most {show(seen['bytes'])}", indent=2)
        for why in seen["not_compared"]:
            paper.say(f"not compared: {why}", indent=2, hang=4)
    if data["attention"]:
        paper.heading("Attention that ran")
        for place, times in data["attention"].items():
            paper.say(f"{place}: in {times} observed steps", indent=2)
    if data["broken_lines"]:
        paper.say(f"{data['broken_lines']} lines are no events (a line cut by a kill).", indent=2)
    output.write(paper.text())
    return 1 if data["warnings"] else 0


def summary(log: Path) -> dict[str, Any]:
    """The findings, peaks and attention kernels of a log.

    Raises:
        UserError: the log can not be read, or holds no event.
    """
    from advisor.measurement import eventlog
    from advisor.measurement.summing import summed

    broken: list[int] = []
    none = f"{log} holds no events; give the file that advisor.watch(..., log=FILE) wrote"
    if log.is_dir():
        raise UserError(f"{log} is a folder; give the file that advisor.watch(..., log=FILE) wrote")
    try:
        if not eventlog.looks_like_one(log):
            raise UserError(none)
        found = summed(eventlog.read(log, broken=broken), broken)
    except OSError as error:
        raise UserError(f"{log} cannot be read: {error.strerror or error}") from None
    if not found["events"]:
        raise UserError(none)
    return found
