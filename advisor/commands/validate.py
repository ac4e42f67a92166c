"""``advisor validate JOB``: the job's real steps on this device, measured, beside the estimate. The measuring runs in processes of its own."""

from __future__ import annotations

import argparse
import json as plain_json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.cli import UserError
from advisor.commands import files, jobfile, options, output

if TYPE_CHECKING:
    from advisor.compare import Side
    from advisor.ledger import Ledger
    from advisor.run import Run

TIMEOUT_SECONDS = 1800
MOST_MICRO_BATCH = 4096
CARDS_OWN = frozenset({"context", "workspace", "allocator"})
NOT_ON_CPU = "The card's context, its libraries' workspace and the allocator's cache are left out of both: a CPU has none."
NEEDED = ("torch", "transformers")  # whatever the job is; adapters need peft too, and the child says so
ENDING_SECONDS = 20.0  # what torchrun may take to end its ranks

# what the extra brings (pyproject.toml); torch marks the lines of a rank's traceback
_LACKING = re.compile(r"^(?:\[rank\d+\]: ?)?ModuleNotFoundError: No module named '(torch|transformers|accelerate|peft)\b", re.MULTILINE)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("job", metavar="JOB", type=files.named, help="a job file (YAML or JSON, 'version: 1'); - reads standard input")
    options.add_json(parser)
    parser.add_argument("--nproc", type=int, default=1, metavar="N", help="run N processes under torchrun (ddp and fsdp2)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU where there is one, else the CPU as a small stand-in")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS", help=f"for each measurement (default {TIMEOUT_SECONDS})")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result to a file of measurements, in the contract's form")
    parser.add_argument("--largest", action="store_true", help="find the largest micro batch that fits, by running")
    parser.add_argument("--cap", metavar="SIZE", help="as if the device had no more memory, e.g. 24GiB")
    parser.add_argument("--probe", action="store_true", help="lay the probe beside it too")
    options.add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print; exit code 1 where it ran out, 2 where it can not be measured here, 3 where a package for it is missing."""
    if args.nproc < 1 or args.timeout <= 0:
        raise UserError("--nproc and --timeout take numbers above 0")
    files.guard("--save", args.save, [args.job], _is_list)
    cap = _size(args.cap)
    resolved = jobfile.resolved_job(args)
    if resolved.missing:
        raise UserError(f"the job leaves open what decides: {', '.join(resolved.missing)}; state it in the job file or with --set FIELD=VALUE")
    for name in NEEDED:
        if find_spec(name) is None:
            raise _not_installed(name)
    if args.largest:
        return _largest(resolved, args, cap)
    found = _measured(resolved.job.to_dict(), args, cap)
    _keep(args.save, resolved.stated.to_dict(), found)
    if found["outcome"] == "ooms":
        raise UserError(f"it ran out of memory here: {found['error']}", verdict="ooms", code=1)
    if found["outcome"] != "fits":
        raise UserError(f"not measured: {found['error']}")
    if args.json:
        output.write(plain_json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        _say(resolved, found, args.probe)
    return 0


def _not_installed(name: str) -> UserError:
    """As the probe says it: nothing is wrong with the job, and the estimate stands in."""
    from advisor.report import EXIT_CODES

    how = "pip install 'training-memory-advisor[probe]' (make probe in a checkout)"
    return UserError(f"validate needs {name}, which is not installed here: {how}", verdict="incomplete", code=EXIT_CODES["incomplete"])


def _is_list(head: bytes) -> bool:
    """Whether a file is a YAML list, to which an entry can be appended."""
    lines = (line.strip() for line in head.splitlines())
    return next((line for line in lines if line and not line.startswith((b"#", b"---"))), b"- ").startswith(b"- ")


def _size(text: str | None) -> int | None:
    from advisor.units import read_size

    size = None if text is None else read_size(text)
    if text is not None and (size is None or not size.bytes):
        raise UserError(f"--cap {text!r} is no size; write it like 24GiB")
    return None if size is None else size.bytes


def _say(resolved: Run, found: dict[str, Any], probe: bool) -> None:
    from advisor.compare import compare, markdown, of_json
    from advisor.units import show
    from advisor.verdict import of_run

    measured = of_json("measured", found)
    on_card = found["device"] != "CPU"
    paper = output.sheet()
    paper.say(f"Measured on {found['device']}: {show(measured.totals['max_allocated'])} at the peak, in {measured.phase}.", "bold")
    for note in found["notes"]:
        paper.say(f"Note: {note}.", indent=2, hang=4)
    paper.say("The measured forward pass has the loss in it." + ("" if on_card else f" {NOT_ON_CPU}"), indent=2, hang=4)
    output.write(paper.text())
    estimated, _, sentence = of_run(resolved)
    if estimated is None:
        output.write(f"\nNot estimated: {sentence}\n")
    else:
        output.write(markdown(compare(_side("estimate", resolved, estimated, on_card), measured)))
    if probe:
        from advisor.simulation import CannotProbe
        from advisor.simulation import probe as run_probe

        try:
            probed = run_probe(resolved).ledger
        except CannotProbe as error:
            output.write(f"\nNot probed: {error}\n")
            return
        output.write("\n" + markdown(compare(_side("probe", resolved, probed, on_card), measured)))


def _side(name: str, resolved: Run, ledger: Ledger, on_card: bool) -> Side:
    """A ledger to lay beside the measured one; without what only a card has, where a CPU stood in."""
    from msgspec.structs import replace

    from advisor.compare import of_json
    from advisor.render.json import of_ledger
    from advisor.verdict import judge

    if not on_card:
        ledger = replace(ledger, holdings=tuple(holding for holding in ledger.holdings if holding.part not in CARDS_OWN), widths=None)
    return of_json(name, of_ledger(resolved, ledger, *judge(resolved, ledger)))


def _largest(resolved: Run, args: argparse.Namespace, cap: int | None) -> int:
    """Search by running; exit code 0 where one fits, 1 where none does, 2 where it can not be measured."""
    from advisor.planner.limits import max_micro_batch
    from advisor.units import show

    if args.nproc > 1:
        raise UserError("--largest runs in one process; several ranks are measured at one micro batch each: --nproc N --set batch.micro_batch=M")
    capacity = cap or (resolved.usable[0] if resolved.usable is not None else None)
    guessed = max_micro_batch(resolved, capacity) if capacity is not None else None
    found = _measured(resolved.job.to_dict(), args, cap, ["--largest", str(guessed or 1), str(MOST_MICRO_BATCH)])
    if found["outcome"] != "searched":
        raise UserError(f"not measured: {found['error']}")
    answer, tried = int(found["largest"]), {int(number): one for number, one in found["tried"].items()}
    for number in sorted(tried):
        _keep(args.save, resolved.stated.but(batch={"micro_batch": number}).to_dict(), tried[number])
        peak = f", {show(tried[number]['totals']['max_allocated']['expected'])}" if "totals" in tried[number] else ""
        if not args.json:
            output.write(f"micro batch {number:,}: {'fits' if tried[number]['outcome'] == 'fits' else 'runs out'}{peak}\n")
    device = found["device"]
    if args.json:
        steps = {number: {"outcome": one["outcome"], "totals": one.get("totals"), "phases": one.get("phases")} for number, one in sorted(tried.items())}
        data = {"version": 1, "largest_micro_batch": answer, "estimated": guessed, "device": device, "cap": cap, "tried": steps}
        output.write(plain_json.dumps(data, indent=2) + "\n")
        return 0 if answer else 1
    limit = f" of {show(cap)}" if cap is not None else ""
    beside = f"; the estimate says {guessed:,}" if guessed is not None else ""
    edge = " (the search ends there)" if answer == MOST_MICRO_BATCH else ""
    output.write(f"{f'Largest micro batch: {answer:,}{edge}' if answer else 'Not even micro batch 1 fits'}, measured on {device}{limit}{beside}.\n")
    return 0 if answer else 1


def _measured(job: dict[str, Any], args: argparse.Namespace, cap: int | None, more: Sequence[str] = ()) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        source, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        source.write_text(plain_json.dumps(job, default=str), encoding="utf-8")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.nproc}"] if args.nproc > 1 else []
        limit = [] if cap is None else ["--cap", str(cap)]
        command = [sys.executable, *launcher, "-m", "advisor.measurement", str(source), "--out", str(answer), "--device", args.device, *limit, *more]
        code, said = _ran(command, args.timeout)
        if answer.is_file():
            found: dict[str, Any] = plain_json.loads(answer.read_text(encoding="utf-8"))
            return found
        if code in (-9, 137) or "(exitcode: -9)" in said:  # torch/distributed/elastic/multiprocessing/api.py, of one rank
            return {"outcome": "ooms", "error": "the measuring process was killed, most likely for want of host memory", "device": "unknown"}
        if (lacking := _LACKING.search(said)) is not None:
            raise _not_installed(lacking[1])
        tail = " / ".join(said.strip().splitlines()[-3:])
        return {"outcome": "not-measured", "error": tail or f"the measuring process ended with code {code}; is torch installed here?"}


def _ran(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Exit code and standard error. A launcher that takes too long is asked to end first: only it can end its ranks, which hold cards."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as child:  # noqa: S603  our own interpreter
        try:
            _, said = child.communicate(timeout=timeout)
        except BaseException as error:  # Ctrl-C too
            child.terminate()
            try:
                child.communicate(timeout=ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise UserError(f"the measurement took longer than {timeout:g} s; raise --timeout or make the job smaller") from None
            raise
    return child.returncode, said


def _keep(path: Path | None, job: dict[str, Any], found: dict[str, Any]) -> None:
    """Append one measurement in the contract's form, where that was asked for and something was measured."""
    if path is None or found["outcome"] not in ("fits", "ooms"):
        return
    from advisor.measurement.recorded import append

    try:
        append(path, job, found)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
