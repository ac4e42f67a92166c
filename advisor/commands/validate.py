"""``advisor validate JOB``: the job's real steps on this device, measured, beside the estimate. The measuring runs in a process of its own."""

from __future__ import annotations

import argparse
import json as plain_json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from advisor.cli import UserError
from advisor.commands import jobfile, options, output

TIMEOUT_SECONDS = 1800


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("job", metavar="JOB", help="a job file (YAML or JSON, 'version: 1'); - reads standard input")
    options.add_json(parser)
    parser.add_argument("--nproc", type=int, default=1, metavar="N", help="run N processes under torchrun (ddp and fsdp2)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU where there is one, else the CPU as a small stand-in")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result to a file of measurements, in the contract's form")
    options.add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print; exit code 1 where it ran out, 2 where it can not be measured here."""
    from advisor.compare import compare, markdown, of_job, of_json
    from advisor.units import show

    if args.nproc < 1 or args.timeout <= 0:
        raise UserError("--nproc and --timeout take numbers above 0")
    resolved = jobfile.resolved_job(args)
    if resolved.missing:
        raise UserError(f"the job leaves open what decides: {', '.join(resolved.missing)}; state it in the job file or with --set FIELD=VALUE")
    found = _measured(resolved.job.to_dict(), args)
    if args.save is not None and found["outcome"] in ("fits", "ooms"):
        _save(args.save, resolved.stated.to_dict(), found)
    if found["outcome"] != "fits":
        print(f"advisor: {'it ran out of memory here' if found['outcome'] == 'ooms' else 'not measured'}: {found['error']}", file=sys.stderr)
        return 1 if found["outcome"] == "ooms" else 2
    if args.json:
        output.write(plain_json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        return 0
    measured = of_json("measured", found)
    paper = output.sheet()
    paper.say(f"Measured on {found['device']}: {show(measured.totals['max_allocated'])} at the peak, in {measured.phase}.", "bold")
    for note in found["notes"]:
        paper.say(f"Note: {note}.", indent=2, hang=4)
    output.write(paper.text())
    output.write(markdown(compare(of_job("estimate", resolved.job), measured)))
    return 0


def _measured(job: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        source, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        source.write_text(plain_json.dumps(job, default=str), encoding="utf-8")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.nproc}"] if args.nproc > 1 else []
        command = [sys.executable, *launcher, "-m", "advisor.measurement", str(source), "--out", str(answer), "--device", args.device]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=args.timeout, check=False)  # noqa: S603  our own interpreter
        except subprocess.TimeoutExpired:
            raise UserError(f"the measurement took longer than {args.timeout:g} s; raise --timeout or make the job smaller") from None
        if answer.is_file():
            found: dict[str, Any] = plain_json.loads(answer.read_text(encoding="utf-8"))
            return found
        if done.returncode in (-9, 137):
            return {"outcome": "ooms", "error": "the measuring process was killed, most likely for want of host memory", "device": "unknown"}
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        return {"outcome": "not-measured", "error": tail or f"the measuring process ended with code {done.returncode}; is torch installed here?"}


def _save(path: Path, job: dict[str, Any], found: dict[str, Any]) -> None:
    """Append one measurement in the contract's form (a YAML list)."""
    import hashlib

    import yaml

    from advisor.units import gib

    fits = found["outcome"] == "fits"
    gib_measured = gib(found["totals"]["max_allocated"]["expected"]) if fits else None
    digest = hashlib.sha256(plain_json.dumps(job, sort_keys=True, default=str).encode()).hexdigest()[:10]
    entry = {
        "id": f"validate-{digest}", "job": job,
        "measured": {"metric": "max_allocated", "gib": gib_measured, "rank": "max", "tolerance_note": None,
        },
        "outcome": found["outcome"], "source": {"title": "advisor validate", "where": f"{found['device']}, {found.get('software') or {}}"}, "quality": "A",
        "notes": "; ".join(found.get("notes") or []) or None,
    }  # fmt: skip
    try:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
