"""``python -m advisor.measurement JOB [--out FILE]``, alone or under torchrun: measures the job here; rank 0 writes the ledger's JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Measure; exit code 0, 1 where it ran out of memory, 2 where the job can not be read or built."""
    parser = argparse.ArgumentParser(prog="python -m advisor.measurement", description="Measure a job's memory on this device.")
    parser.add_argument("job", type=Path)
    parser.add_argument("--out", type=Path, help="write the JSON here instead of standard output")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--cap", type=int, metavar="BYTES", help="as if the device had no more: on a GPU torch is held to it, on a CPU the peak is judged by it"
    )
    parser.add_argument("--largest", type=int, nargs=2, metavar=("GUESS", "MOST"), help="search the largest micro batch that fits (one process)")
    args = parser.parse_args()

    import torch

    from advisor.measurement import ranks, together
    from advisor.measurement.attempting import attempt, search

    device = ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    if device == "cpu":
        torch.set_num_threads(max(1, min(4, torch.get_num_threads())))
    rank = ranks.begin(device)  # chooses this rank's card, which the cap is then for
    if device != "cpu" and args.cap is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.cap / torch.cuda.mem_get_info()[1]))

    def write(answer: dict[str, Any]) -> None:
        text = json.dumps(answer, indent=2, default=str) + "\n"
        if args.out is None:
            sys.stdout.write(text)
        else:
            args.out.write_text(text, encoding="utf-8")

    group = together.joined(write)
    job, say = args.job.read_bytes(), _say if rank == 0 else _silent
    answer: dict[str, Any]
    if args.largest is not None:
        answer = search(job, device, args.cap, args.largest[0], args.largest[1], say)
    else:
        answer = attempt(job, device, args.cap, say, group)
    code = {"ooms": 1, "not-measured": 2}.get(answer["outcome"], 0)
    if group is not None:
        if code:  # the others may wait in a collective for this rank
            group.end(answer, code, "ran out of memory" if code == 1 else "could not measure")
        group.close()
        torch.distributed.destroy_process_group()
    if rank == 0:
        write(answer)
    return code


def _say(text: str) -> None:
    print(f"measure: {text}", file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    return None


if __name__ == "__main__":
    raise SystemExit(main())
