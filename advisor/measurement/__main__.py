"""``python -m advisor.measurement JOB [--out FILE]``, alone or under torchrun: measures the job here; rank 0 writes the ledger's JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    """Measure; exit code 0, 1 where it ran out of memory, 2 where the job can not be read or built."""
    parser = argparse.ArgumentParser(prog="python -m advisor.measurement", description="Measure a job's memory on this device.")
    parser.add_argument("job", type=Path)
    parser.add_argument("--out", type=Path, help="write the JSON here instead of standard output")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    args = parser.parse_args()

    import torch

    from advisor.job import read_job
    from advisor.measurement import ranks, steps
    from advisor.run import resolve
    from advisor.simulation.request import CannotProbe

    device = ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    if device == "cpu":
        torch.set_num_threads(max(1, min(4, torch.get_num_threads())))
    rank = ranks.begin(device)
    answer: dict[str, object]
    try:
        run = resolve(read_job(args.job.read_bytes(), where=args.job.name))
        ledger = steps.measure(run, device, ranks.divider(run.effective), _say if rank == 0 else lambda _: None)
        ledger = ranks.merged(ranks.gathered(ledger))
        from advisor.render.json import of_ledger
        from advisor.verdict import judge

        verdict, sentence = judge(run, ledger)
        answer, code = {**of_ledger(run, ledger, verdict, sentence), "outcome": "fits", "device": _device(device)}, 0
    except torch.OutOfMemoryError as error:
        answer, code = {"outcome": "ooms", "error": str(error)[:2000], "device": _device(device)}, 1
    except (CannotProbe, ValueError, OSError) as error:
        answer, code = {"outcome": "not-measured", "error": str(error)[:2000]}, 2
    if rank == 0 or code == 1:  # a rank that runs out is the one that knows
        text = json.dumps(answer, indent=2, default=str) + "\n"
        if args.out is None:
            sys.stdout.write(text)
        else:
            args.out.write_text(text, encoding="utf-8")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return code


def _say(text: str) -> None:
    print(f"measure: {text}", file=sys.stderr, flush=True)


def _device(device: str) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if device == "cuda" else "CPU"


if __name__ == "__main__":
    raise SystemExit(main())
