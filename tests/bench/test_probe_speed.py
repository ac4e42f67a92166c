"""How long the probe of large models takes, and how much memory: processor time, so that a busy machine counts less.

Timing is for ``make bench`` (``ADVISOR_QUIET=1``, a quiet core). An ordinary run of the tests holds only that a few layers are extended to the byte,
and the memory of that.
"""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

QUIET = os.environ.get("ADVISOR_QUIET") == "1"
bench = pytest.mark.skipif(not QUIET, reason="timing, on a quiet core: make bench")
DIVIDED = {
    "parallel": {"strategy": "fsdp2", "shard": 1024, "replicate": 1},
    "precision": {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "reduce": "fp32"},
    "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 128},
}
UNRECOMPUTED = {"activations": {"checkpointing": "none", "attention": "sdpa"}}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "8B": ("meta-llama/Llama-3.1-8B", {}),
    "70B": ("meta-llama/Llama-3.1-70B", {}),
    "8B, no checkpointing": ("meta-llama/Llama-3.1-8B", UNRECOMPUTED),
    "70B, no checkpointing": ("meta-llama/Llama-3.1-70B", UNRECOMPUTED),
    "8B, FSDP2 on 1,024 ranks": ("meta-llama/Llama-3.1-8B", DIVIDED),
    "70B, FSDP2 on 1,024 ranks": ("meta-llama/Llama-3.1-70B", DIVIDED),
}
EXTENDED = {"8B": 4, "70B": 8, "8B, FSDP2 on 1,024 ranks": 12, "70B, FSDP2 on 1,024 ranks": 20}  # seconds after imports
WHOLE = {name: 12 if name.startswith("8B") else 60 for name in JOBS}  # seconds after imports, the reserved memory of both allocator modes too
IMPORTS = 6  # seconds of torch and transformers, which the whole child's time holds
MEMORY = 700_000_000  # bytes of a process that has torch loaded
EVENTS_A_SECOND = 1_000_000


def _job(name: str) -> dict[str, Any]:
    model, sections = JOBS[name]
    return {
        "version": 1, "model": {"name": model}, "method": {"kind": "full"}, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"},
        "optimizer": {"name": "adamw"}, "batch": {"micro_batch": 1, "seq_len": 4096},
        "activations": {"checkpointing": "full", "reentrant": False, "attention": "sdpa"}, "framework": {"name": "custom"},
        "hardware": {"gpu": "h100-80gb"}, **sections,
    }  # fmt: skip


@pytest.mark.parametrize("name", EXTENDED)
def test_a_few_layers_take_seconds(name: str) -> None:
    import torch

    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.simulation import extrapolating

    torch.set_num_threads(1)
    small = {**_job("8B"), "model": {"name": "HuggingFaceTB/SmolLM2-135M"}}
    extrapolating.ledger(resolve(read_job(small)), lambda _: None, {})  # imports
    run = resolve(read_job(_job(name)))
    started = time.process_time()
    ledger = extrapolating.ledger(run, lambda _: None, {})
    taken = time.process_time() - started
    print(f"{name}: {taken:.1f} s, {ledger.peak().bytes / 2**30:.3f} GiB at {ledger.peak().moment.id}")
    assert ledger.peak().bytes > 0
    if QUIET:
        assert taken <= EXTENDED[name]


@bench
@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_stream_in_a_process_of_its_own(name: str) -> None:
    """As ``advisor probe`` starts it; its processor time holds the imports, its memory all that it ever had."""
    from advisor.simulation.launching import command, environment

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asked = json.dumps({"job": json.dumps(_job(name))})
    done = subprocess.run(command(), input=asked, env=environment(None), capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = json.loads(done.stdout)
    assert "error" not in answer, answer
    print(f"{name}: {taken:.1f} s with imports, {answer['events']} events, reserved {answer['reserved']}")
    assert answer["reserved"]
    assert taken <= WHOLE[name] + IMPORTS
    scale = 1 if sys.platform == "darwin" else 1024
    assert after.ru_maxrss * scale <= MEMORY  # the largest child so far; every other test here starts smaller ones


@bench
@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("name", JOBS)
def test_the_allocator_replays_a_million_events_a_second(name: str, expandable: bool) -> None:
    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.simulation.allocator_settings import Settings
    from advisor.simulation.replaying import replay
    from advisor.simulation.step import record

    recorder = record(resolve(read_job(_job(name))))
    sizes = {number: storage.requested for number, storage in recorder.storages.items()}
    streams = {number: storage.stream for number, storage in recorder.storages.items() if storage.stream}
    found = []
    for _ in range(15):
        started = time.process_time()
        replay(recorder.events, sizes, settings=Settings(expandable=expandable), streams=streams)
        found.append(len(recorder.events) / (time.process_time() - started))
    print(f"{name}, {'expandable' if expandable else 'default'}: {max(found) / 1e6:.2f} million events a second, {len(recorder.events)} events")
    assert max(found) >= EVENTS_A_SECOND
