"""``advisor probe JOB``: the job's real model, autograd and optimizer without a GPU, beside the estimate."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.cli import UserError
from advisor.commands import files, jobfile, options, output

if TYPE_CHECKING:
    from advisor.ledger import Ledger
    from advisor.render.paper import Paper
    from advisor.run import Run
    from advisor.simulation import Probed


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from advisor.simulation.probing import TIMEOUT_SECONDS

    parser.add_argument("job", metavar="JOB", type=files.named, help="a job file (YAML or JSON, 'version: 1'); - reads standard input")
    options.add_json(parser)
    parser.add_argument("--timeline", metavar="FILE", type=Path, help="write every tensor's life as JSON")
    parser.add_argument("--snapshot", metavar="FILE", type=Path, help="write a memory snapshot (pickle) that PyTorch's memory viewer opens")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS", help=f"end the probe after this long (default {TIMEOUT_SECONDS})")
    parser.add_argument("--install-versions", action="store_true", help="let pip fetch the job's versions of transformers, peft, trl, accelerate into a cache")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--whole", action="store_const", dest="extrapolate", const=False, help="run every layer of a large model, for reserved memory too")
    depth.add_argument("--few-layers", action="store_const", dest="extrapolate", const=True, help="run a few layers and extend them, exactly or not at all")
    parser.add_argument("--strict", action="store_true", help="exit with 1 also when it is tight")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    options.add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    """Probe, print; the exit code is the verdict's. A job that can not be probed is a 3: the estimate stands in."""
    from advisor.report import EXIT_CODES
    from advisor.simulation import CannotProbe, probe
    from advisor.verdict import judge, of_run

    for path in (args.timeline, args.snapshot):
        if path is not None and not path.resolve().parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent} to write to")
    files.guard("--timeline", args.timeline, [args.job, args.snapshot], lambda head: b'"unit": "events in order' in head)
    files.guard("--snapshot", args.snapshot, [args.job], lambda head: head[:1] == b"\x80")
    if args.timeout <= 0:
        raise UserError(f"--timeout {args.timeout:g}: give a number of seconds above 0")
    resolved = jobfile.resolved_job(args)
    if resolved.missing:
        of_run(resolved)  # a config that can not be read says why
        raise UserError(f"the job leaves open what decides: {', '.join(resolved.missing)}; state it in the job file or with --set FIELD=VALUE")
    try:
        seen = probe(
            resolved, timeout=args.timeout, say=_silent if args.quiet else _say, timeline=args.timeline, snapshot=args.snapshot,
            install_versions=args.install_versions, extrapolate=args.extrapolate,
        )  # fmt: skip
    except CannotProbe as error:
        raise UserError(str(error), verdict="incomplete", code=EXIT_CODES["incomplete"]) from None
    verdict, sentence = judge(resolved, seen.ledger)
    estimated = _estimated(resolved)
    if args.json:
        from advisor.render import json

        data = {**json.of_ledger(resolved, seen.ledger, verdict, sentence), "probe": _about(seen), "estimate": _beside(seen.ledger, estimated)}
        output.write(json.text(data) + "\n")
    else:
        from advisor.render import terminal

        output.write(terminal.estimate(resolved, seen.ledger, verdict, sentence, output.sheet()))
        output.write(_comparison(seen, estimated, output.sheet()))
    return 1 if args.strict and verdict == "tight" else EXIT_CODES[verdict]


def _say(text: str) -> None:
    print(f"probe: {text}", file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    return None


def _estimated(run: Run) -> Ledger | None:
    from advisor.arithmetic import CannotEstimate, estimate

    try:
        return estimate(run)
    except CannotEstimate:
        return None


def _about(seen: Probed) -> dict[str, Any]:
    return {"events": seen.events, "seconds": seen.seconds, "max_reserved_by_mode": seen.reserved}


def _beside(probed: Ledger, estimated: Ledger | None) -> dict[str, Any] | None:
    """Phases, moments and, at the probe's largest moment, parts: probed, estimated and their difference in bytes."""
    if estimated is None:
        return None
    from advisor.beside import moments_beside, same_moment

    ours, theirs = same_moment(probed, estimated)
    mine, other = probed.by_part(ours.moment.id), estimated.by_part(theirs.moment.id)
    guessed = estimated.phases()
    return {
        "max_allocated": estimated.peak().bytes, "peak_phase": estimated.peak().phase, "peak_moment": estimated.peak().moment.id,
        "phases": {name: _row(size, guessed[name]) for name, size in probed.phases().items() if guessed.get(name)},
        "moments": {moment: _row(*sizes) for moment, sizes in moments_beside(probed, estimated).items()},
        "parts_in": ours.phase, "parts_at": ours.moment.id, "estimated_at": theirs.moment.id,
        "parts": {part: _row(mine.get(part, 0), other.get(part, 0)) for part in {**mine, **other}},
    }  # fmt: skip


def _row(probed: int, estimated: int) -> dict[str, int]:
    return {"probed": probed, "estimated": estimated, "difference": estimated - probed}


def _comparison(seen: Probed, estimated: Ledger | None, paper: Paper) -> str:
    from advisor.units import show

    data = _beside(seen.ledger, estimated)
    if data is not None:
        peak = seen.ledger.peak().bytes
        off = (data["max_allocated"] / peak - 1) * 100
        paper.heading(f"Beside the estimate ({show(data['max_allocated'])}, {off:+.1f} %)")
        for label, rows in ((f"at {data['parts_at']}", data["parts"]), ("at", data["moments"])):
            for name, row in sorted(rows.items(), key=lambda item: -abs(item[1]["difference"])):
                sign = "+" if row["difference"] >= 0 else "-"
                paper.say(
                    f"{label} {name}: {show(row['probed'])} probed, {show(row['estimated'])} estimated ({sign}{show(abs(row['difference']))})", indent=2, hang=4
                )
    for note in seen.notes:
        paper.say(f"Note: {note}.", indent=2, hang=4)
    modes = ", ".join(f"{show(size)} {mode}" for mode, size in seen.reserved.items())
    if seen.reserved:
        paper.say(f"{seen.events:,} births and deaths in {seen.seconds:.1f} s. Reserved by the allocator's mode: {modes}.", indent=2)
    else:
        paper.say(f"A few layers, extended to the byte, in {seen.seconds:.1f} s; reserved memory is the estimate's (--whole replays every layer).", indent=2)
    return paper.text()
