"""A job tried on this device, which it survives: what was measured, or that it ran out, or why it could not be measured."""

from __future__ import annotations

import gc
import json
from typing import Any

import torch

from advisor.job import Job, read_job
from advisor.ledger import Ledger
from advisor.measurement import largest, machine, ranks, steps
from advisor.measurement.parts import WatchedStepRanOutError
from advisor.measurement.steps import Say
from advisor.measurement.together import Together
from advisor.measurement.watching import failing
from advisor.run import Run, resolve
from advisor.simulation.request import CannotProbe
from advisor.units import show

MAX_ERROR = 2000  # characters


def attempt(job: bytes, device: str, cap: int | None, say: Say, group: Together | None = None) -> dict[str, Any]:
    """``outcome``: ``fits`` (with the ledger's JSON), ``ooms`` or ``not-measured`` (with ``error``). ``cap``: bytes that a CPU's peak is judged by.

    ``group``: of several ranks, which one that runs out in the step beyond the measured ones ends with what was measured.
    """
    try:
        run = resolve(read_job(job, where="the job"))
    except ValueError as error:
        return {"outcome": "not-measured", "error": str(error)[:MAX_ERROR]}
    return _tried(run, device, cap, say, group)


def search(job: bytes, device: str, cap: int | None, guess: int, most: int, say: Say) -> dict[str, Any]:
    """``outcome`` ``searched``: ``largest``, and ``tried`` by micro batch; or the first answer that was no measurement."""
    stated: Job = read_job(job, where="the job")
    tried: dict[int, dict[str, Any]] = {}

    def fits(number: int) -> bool:
        found = tried[number] = _tried(resolve(stated.but(batch={"micro_batch": number})), device, cap, lambda text: say(f"micro batch {number:,}: {text}"))
        if found["outcome"] == "not-measured":
            raise CannotProbe(f"at micro batch {number:,}: {found['error']}")
        say(f"micro batch {number:,}: {'fits' if found['outcome'] == 'fits' else 'runs out'}")
        return bool(found["outcome"] == "fits")

    try:
        answer = largest.largest(fits, guess, most)
    except CannotProbe as error:
        return {"outcome": "not-measured", "error": str(error)[:MAX_ERROR]}
    return {"outcome": "searched", "largest": answer, "tried": tried, **machine.described(device)}


def _tried(run: Run, device: str, cap: int | None, say: Say, group: Together | None = None) -> dict[str, Any]:
    settled: dict[str, Any] = {}

    def counted(ledger: Ledger) -> None:
        if group is not None:
            settled.update(_judged(run, ranks.gathered(ledger), device, cap))

    try:
        all_ranks = ranks.gathered(steps.measure(run, device, ranks.divider(run.effective, device), say, counted))
    except (CannotProbe, ValueError, OSError) as error:
        return {"outcome": "not-measured", "error": str(error)[:MAX_ERROR]}
    except WatchedStepRanOutError:
        assert group is not None
        why = "ran out of memory in the step that is watched to tell parts apart, after all measured steps had fitted"
        settled["notes"] = [*settled["notes"], f"the parts that a watched step tells were not told: a rank {why}"]
        group.end(settled, 0, why)
    except (RuntimeError, MemoryError) as error:  # the host's allocator and some libraries have no type of their own for it
        if not failing.is_memory(error):
            if group is not None:  # a connection to a rank that has ended
                group.heard()
            raise
        says = str(error)[:MAX_ERROR] or type(error).__name__
    else:
        _clear(device)
        return _judged(run, all_ranks, device, cap)
    _clear(device)  # only here has the traceback let go of the frames
    return {"outcome": "ooms", "error": says, **machine.described(device)}


def _judged(run: Run, all_ranks: list[Ledger], device: str, cap: int | None) -> dict[str, Any]:
    """The answer of steps that ran to their end."""
    from advisor.render.json import of_ledger
    from advisor.verdict import judge

    ledger = ranks.merged(all_ranks)
    verdict, sentence = judge(run, ledger)
    answer = {**of_ledger(run, ledger, verdict, sentence), "outcome": "fits", **ranks.spread(all_ranks), **machine.described(device)}
    peak = ledger.peak().bytes
    if cap is None or device != "cpu" or peak <= cap:
        return dict(json.loads(json.dumps(answer, default=str)))
    return {**answer, "outcome": "ooms", "error": f"{show(peak)} were counted at the peak, and {show(cap)} are allowed"}


def _clear(device: str) -> None:
    """Give back what the attempt held, so that the next begins with an empty device."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
