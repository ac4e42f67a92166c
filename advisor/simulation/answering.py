"""Answers one request of the probe: the recorded step as a ledger, the allocator's replay, and files where they are asked for."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.job import JobError, read_job
from advisor.run import Run, resolve
from advisor.simulation import outside, versions, zero_scope
from advisor.simulation.request import CannotProbe
from advisor.simulation.wire import to_dict

NEEDED = frozenset({"torch", "transformers"})
MEMORY_BYTES = 16 << 30  # address space: torch maps some gigabytes that it never touches


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as plain data; errors are answers too."""
    try:
        run = resolve(read_job(request["job"]))
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():  # libraries print as they please; the answer alone goes out
            warnings.simplefilter("ignore")
            return _probe(run, request)
    except (CannotProbe, JobError) as error:
        return {"error": str(error)}
    except ImportError as error:
        if error.name not in NEEDED:
            return {"error": f"the model's own code needs {error.name or 'a package'}, which can not be loaded here: the estimate stands in"}
        return {"error": f"the probe needs torch and transformers ({error.name} is missing): pip install 'training-memory-advisor[probe]'"}
    except MemoryError:
        return {"error": "the probe ran out of its own memory limit; a smaller model or the estimate stands in"}
    except Exception as error:  # a model class may fail in any way; the caller falls back to the estimate
        return {"error": f"the model's own code failed under the probe{_operator()}: {type(error).__name__}: {_first_line(error)}; the estimate stands in"}


def limit() -> None:
    """Bound this process's address space."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def say(text: str) -> None:
    """Progress, for whoever started the process."""
    print(f"probe: {text}", file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else ""


def _operator() -> str:
    """The operator and module that ran when the model's code failed."""
    recorder = sys.modules.get("advisor.simulation.recorder")
    last = recorder.last_operator if recorder is not None else None
    return f" at {last[0]} in {last[1] or 'the step'}" if last else ""


def _probe(run: Run, request: Mapping[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    say("loading torch and transformers")
    import torch
    import transformers

    from advisor.simulation import extrapolating, replaying, snapshot, timeline
    from advisor.simulation.allocator_settings import Settings
    from advisor.simulation.ranks import looking
    from advisor.simulation.step import STEPS, record

    torch.set_num_threads(1)
    software = {"torch": torch.__version__, "transformers": transformers.__version__}
    vocab = run.architecture.vocab if run.architecture else 0
    if request.get("extrapolate"):
        try:
            extended = extrapolating.ledger(run, say, software)
            software |= _others(run)
            seconds = round(time.perf_counter() - started, 2)
            return {"ledger": {**to_dict(extended), "software": software}, "reserved": {}, "events": 0, "seconds": seconds, "notes": _notes(run, software)}
        except extrapolating.Refused as why:
            say(f"all layers, because {why}")
    recorder, stage = looking.fullest(run, lambda rank: record(run, say, rank=rank), say)
    gc.collect()
    say("replaying the allocator")
    events, storages = list(recorder.events), recorder.storages
    sizes = {number: storage.requested for number, storage in storages.items()}
    streams = {number: storage.stream for number, storage in storages.items() if storage.stream}
    written = run.effective.framework.allocator or {}
    modes = outside.modes(run)
    replays = {
        mode: replaying.replay(
            events,
            sizes,
            settings=Settings.of(written, expandable=mode == "expandable"),
            streams=streams,
            trace=bool(request.get("snapshot")),
        )
        for mode in modes
    }
    first = replays[modes[0]]
    for number, size in first.granted.items():
        storages[number].bytes = size
    software |= _others(run)
    if request.get("timeline"):
        whole = timeline.as_json(events, storages, recorder.marks, recorder.moments, vocab=vocab, last_step=STEPS - 1)
        Path(request["timeline"]).write_text(json.dumps(whole), encoding="utf-8")
    if request.get("snapshot"):
        snapshot.write(Path(request["snapshot"]), first, storages)
    ledger = timeline.ledger(events, storages, recorder.moments, vocab=vocab, last_step=STEPS - 1, software=software)
    ledger = timeline.with_home(ledger, recorder.host_events, storages, recorder.host_moments, vocab=vocab, last_step=STEPS - 1)
    ledger = timeline.with_host(ledger, recorder.host_peak)
    reserved = {mode: replay.max_reserved for mode, replay in replays.items()}
    seconds = round(time.perf_counter() - started, 2)
    notes = {"notes": _notes(run, software), "remarks": [*([stage] if stage else []), *_remarks(run)]}
    return {"ledger": to_dict(ledger), "reserved": reserved, "events": len(events), "seconds": seconds, **notes}


def _others(run: Run) -> dict[str, str]:
    names = (*versions.PACKAGES[1:], *(("deepspeed",) if zero_scope.wanted(run.effective) else ()))
    return {name: version for name in names if name in sys.modules and (version := versions.installed(name))}


def _remarks(run: Run) -> list[str]:
    """What is another code's than the run's own, by intention."""
    if zero_scope.wanted(run.effective):
        return ["DeepSpeed's own engine at the job's own sizes, nothing scaled; PyTorch's fused Adam stands for DeepSpeed's, which is a kernel"]
    job, found = run.effective, []
    if job.model.source == "torchtitan":
        eager = ", its compiled blocks without what inductor fuses away within them" if job.activations.compile else ""
        found.append(f"torchtitan's Llama 3 by its operators (0.1.0 and 0.2.0 were read){eager}")
    if job.precision.compute == "fp8":
        gathered = "; weights are gathered in 16 bits: with float8 all-gather each gathered layer is half" if job.parallel.strategy == "fsdp2" else ""
        found.append(f"torchao's float8 layers by what they allocate (0.14.1 and 0.18.0 compared){gathered}")
    return found


def _notes(run: Run, software: dict[str, str]) -> list[str]:
    wanted = run.job.framework.versions or {}
    different = [
        f"{name} {software[name]} instead of the run's {wanted[name]}"
        for name in software
        if name != "torch" and wanted.get(name, software[name]) != software[name]
    ]
    if not different:
        return []
    return [f"run with {', '.join(different)}: the framework's version is an input as much as the batch size (up to 20 % off in public runs)"]
