"""The probe's child process: a job as JSON on standard input, the answer as JSON on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
import warnings

from advisor.job import JobError, read_job
from advisor.run import Run, resolve
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
            answer = _probe(run)
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


def _probe(run: Run) -> dict[str, object]:
    started = time.perf_counter()
    _say("loading torch and transformers")
    import torch
    import transformers

    from advisor.simulation import allocator, timeline
    from advisor.simulation.step import STEPS, record

    recorder = record(run, _say)
    gc.collect()
    _say("replaying the allocator")
    events = list(recorder.events)
    sizes = {number: storage.bytes for number, storage in recorder.storages.items()}
    software = {"torch": torch.__version__, "transformers": transformers.__version__}
    vocab = run.architecture.vocab if run.architecture else 0
    ledger = timeline.ledger(events, recorder.storages, recorder.marks, vocab=vocab, last_step=STEPS - 1, software=software)
    reserved = {mode: allocator.replay(events, sizes, expandable=mode == "expandable").max_reserved for mode in ("default", "expandable")}
    return {
        "ledger": to_dict(ledger),
        "reserved": reserved,
        "events": len(events),
        "seconds": round(time.perf_counter() - started, 2),
        "notes": _notes(run, software),
    }


def _notes(run: Run, software: dict[str, str]) -> list[str]:
    wanted = run.job.framework.versions or {}
    different = [f"{name} {software[name]} instead of the run's {wanted[name]}" for name in software if name in wanted and wanted[name] != software[name]]
    return [f"run with {', '.join(different)}: the framework's version is an input as much as the batch size"] if different else []


if __name__ == "__main__":
    sys.exit(main())
