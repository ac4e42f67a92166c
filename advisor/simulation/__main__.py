"""The probe's child process: a job as JSON on standard input, the answer as JSON on standard output, progress on standard error."""

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
from advisor.simulation import versions
from advisor.simulation.probing import MEMORY_BYTES, to_dict
from advisor.simulation.request import CannotProbe


def main() -> int:
    """Answer one request; errors are answers too."""
    _limit()
    out = sys.stdout
    try:
        request = json.load(sys.stdin)
        run = resolve(read_job(request["job"]))
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():  # libraries print as they please; the answer alone goes out
            warnings.simplefilter("ignore")
            answer = _probe(run, request)
    except (CannotProbe, JobError, KeyError, ValueError) as error:
        answer = {"error": str(error)}
    except ImportError as error:
        answer = {"error": f"the probe needs torch and transformers ({error.name} is missing): pip install 'training-memory-advisor[probe]'"}
    except MemoryError:
        answer = {"error": "the probe ran out of its own memory limit; a smaller model or the estimate stands in"}
    except Exception as error:  # a model class may fail in any way; the caller falls back to the estimate
        answer = {"error": f"the model's own code failed under the probe: {type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"}
    json.dump(answer, out)
    return 0


def _limit() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _say(text: str) -> None:
    print(f"probe: {text}", file=sys.stderr, flush=True)


def _probe(run: Run, request: Mapping[str, Any]) -> dict[str, object]:
    started = time.perf_counter()
    _say("loading torch and transformers")
    import torch
    import transformers

    from advisor.simulation import allocator, extrapolating, snapshot, timeline
    from advisor.simulation.step import STEPS, record

    torch.set_num_threads(1)
    software = {"torch": torch.__version__, "transformers": transformers.__version__}
    vocab = run.architecture.vocab if run.architecture else 0
    if request.get("extrapolate"):
        try:
            extended = extrapolating.ledger(run, _say, software)
            software |= _others()
            notes = _notes(run, software)
            return {
                "ledger": {**to_dict(extended), "software": software},
                "reserved": {},
                "events": 0,
                "seconds": round(time.perf_counter() - started, 2),
                "notes": notes,
            }
        except extrapolating.Refused as why:
            _say(f"all layers, because {why}")
    recorder = record(run, _say)
    gc.collect()
    _say("replaying the allocator")
    events, storages = list(recorder.events), recorder.storages
    sizes = {number: storage.requested for number, storage in storages.items()}
    written = run.effective.framework.allocator or {}
    stated = written.get("expandable_segments")
    modes = ("default", "expandable") if stated is None else ("expandable",) if stated else ("default",)
    replays = {
        mode: allocator.replay(events, sizes, settings=allocator.Settings.of(written, expandable=mode == "expandable"), trace=bool(request.get("snapshot")))
        for mode in modes
    }
    first = replays[modes[0]]
    for number, size in first.granted.items():
        storages[number].bytes = size
    software |= _others()
    if request.get("timeline"):
        whole = timeline.as_json(events, storages, recorder.marks, vocab=vocab, last_step=STEPS - 1)
        Path(request["timeline"]).write_text(json.dumps(whole), encoding="utf-8")
    if request.get("snapshot"):
        snapshot.write(Path(request["snapshot"]), first, storages)
    ledger = timeline.ledger(events, storages, recorder.marks, vocab=vocab, last_step=STEPS - 1, software=software)
    return {
        "ledger": to_dict(ledger),
        "reserved": {mode: replay.max_reserved for mode, replay in replays.items()},
        "events": len(events),
        "seconds": round(time.perf_counter() - started, 2),
        "notes": _notes(run, software),
    }


def _others() -> dict[str, str]:
    return {name: version for name in versions.PACKAGES[1:] if name in sys.modules and (version := versions.installed(name))}


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


if __name__ == "__main__":
    sys.exit(main())
