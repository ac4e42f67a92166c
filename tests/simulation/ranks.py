"""Groups of ranks that really run on the CPU over gloo, each watched or not, as its job says. Started by ``test_against_ranks``.

The libraries are loaded once; every rank is a fork of that process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def sending() -> Iterator[set[int]]:
    """Numbers of the storages that functional collectives (DTensor) were given, while the context is open."""
    from advisor.simulation.patching import patched
    from advisor.simulation.recorder import Recorder

    given: set[int] = set()
    run = Recorder._run

    def noting(self: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function.namespace == "_c10d_functional":
            numbers = [self.number_of(value) for value in args if hasattr(value, "untyped_storage")]
            given.update(number for number in numbers if number is not None)
        return run(self, function, args, kwargs)

    with patched([(Recorder, "_run", noting)]):
        yield given


def _wait_for_other_threads(pause: float = 0.02) -> None:
    """Until every other thread has slept through three looks, ``pause`` seconds apart: gloo's have nothing left to let go of.

    The interpreter's lock is free between the looks. They are woken with ours when a collective is done, and may be late where a machine is busy.
    Elsewhere than on Linux: a dozen pauses.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        time.sleep(12 * pause)
        return
    own, quiet, until = str(threading.get_native_id()), 0, time.monotonic() + 30
    while quiet < 3 and time.monotonic() < until:
        time.sleep(pause)
        quiet = quiet + 1 if all(_sleeps(task) for task in tasks.iterdir() if task.name != own) else 0


def _sleeps(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "SI"
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return True


@contextlib.contextmanager
def letting_go_late() -> Iterator[None]:
    """What gloo's own thread lets go of ends when the next operator begins, and before the run is over: never in the middle of a statement of ours."""
    from advisor.simulation.patching import patched
    from advisor.simulation.recorder import Recorder

    late: list[int] = []
    home = threading.get_ident()
    gone, run, close = Recorder._gone, Recorder._run, Recorder.close

    def noting(self: Any, key: int, number: int) -> None:
        if threading.get_ident() == home:
            return gone(self, key, number)
        self._live.pop(key, None)  # at once: the next storage may lie at the same address
        self._away.pop(key, None)
        self._keep.pop(number, None)
        return late.append(number)

    def ended(self: Any) -> None:
        while late:
            number = late.pop(0)
            self.died(self._alias.pop(number, number))

    def running(self: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ended(self)
        result = run(self, function, args, kwargs)
        if function._name == "_c10d_functional::wait_tensor":
            _wait_for_other_threads(0.001)  # else a result may outlive the sum that takes its place
        return result

    def closing(self: Any) -> None:
        _wait_for_other_threads()
        ended(self)
        close(self)

    with patched([(Recorder, "_gone", noting), (Recorder, "_run", running), (Recorder, "close", closing)]):
        yield


@contextlib.contextmanager
def copying_to_host() -> Iterator[None]:
    """Where the device is a CPU already, ``foreach_reduce`` copies no reduced shard to the host: made good as it hands the shard on.

    FSDP1 waits for its stream then, which on a CPU has nothing to wait for and no such method.
    """
    import torch
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    from advisor.simulation.patching import patched
    from advisor.simulation.ranks import hosting
    from advisor.simulation.recorder import Recorder

    watching: list[Recorder] = []
    put: Any = hosting.put
    to_sharded: Any = FSDPParam.to_sharded_dtensor

    def noting(recorder: Recorder, model: Any) -> None:
        watching.append(recorder)
        put(recorder, model)

    def copied(param: Any, tensor: Any) -> Any:
        if watching and watching[-1].phase == "backward" and param.offload_to_cpu:
            with Recorder.paused():
                tensor = tensor.clone()
            watching[-1].put_on_host(tensor, pinned=False)
            watching[-1].see(tensor, "aten::_to_copy")
        return to_sharded(param, tensor)

    with patched([(hosting, "put", noting), (FSDPParam, "to_sharded_dtensor", copied), (torch.cpu.Stream, "synchronize", lambda *_: None)]):
        yield


@contextlib.contextmanager
def fused_on_cpu() -> Iterator[None]:
    """Flash attention's kernels for CPU tensors: outputs of their shapes and strides, which is what ring attention passes on; no values."""
    import torch
    from torch.utils._pytree import tree_map

    def kernel(operator: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                made = operator(*tree_map(_to("meta"), args), **tree_map(_to("meta"), kwargs))
                return tree_map(_to("cpu"), made)

        return call

    library = torch.library.Library("aten", "IMPL")
    for name in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"):
        library.impl(name, kernel(getattr(torch.ops.aten, name)), "CPU")
    try:
        yield
    finally:
        library._destroy()


def _to(device: str) -> Any:
    import torch

    def move(value: Any) -> Any:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device) if isinstance(value, torch.Tensor) else value

    return move


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Cycles (FSDP1's hooks make some) die when the collector happens to run, which is another moment in every process: in none, meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seen(job: dict[str, Any], **how: Any) -> list[list[Any]]:
    """A job's births and deaths as plain data, then those on the host; ``sent``: the end of what a collective was given or made."""
    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.simulation.step import record

    real, ring = how.get("device") == "cpu", (job["parallel"].get("context") or 1) > 1
    with contextlib.ExitStack() as entered:
        given = entered.enter_context(sending())
        for made_good in ((letting_go_late, copying_to_host) if real else ()) + ((fused_on_cpu,) if real and ring else ()):
            entered.enter_context(made_good())
        entered.enter_context(uncollected())
        recorder = record(resolve(read_job(job)), **{"autocast": None, "attention": "auto" if ring else "math", **how})
    found = []
    for event in (*recorder.events, *recorder.host_events):
        s = recorder.storages[event.id]
        sent = event.id in given or s.operator.startswith("_c10d_functional")
        kind = ("sent" if sent else "death") if event.free else "birth"
        found.append([f"host {kind}" if s.host else kind, s.requested, s.operator, list(s.shape), s.dtype, s.phase, s.module])
    return found


def main(jobs: Path, folder: Path) -> int:
    """``jobs``: by number of ranks, by name, each with the ranks that are watched. What they saw goes to ``folder``; not 0 where a rank failed."""
    import accelerate
    import peft
    import torch

    from advisor.simulation import step

    del accelerate, peft, step
    torch.set_num_threads(1)
    failed = 0
    for world, named in json.loads(jobs.read_text()).items():
        children = []
        for rank in range(int(world)):
            child = os.fork()
            if not child:
                os._exit(_rank(rank, int(world), named, folder))
            children.append(child)
        failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
    return int(failed > 0)


def _rank(rank: int, world: int, jobs: dict[str, tuple[dict[str, Any], list[int]]], folder: Path) -> int:
    import traceback

    import torch.distributed as dist

    warnings.simplefilter("ignore")
    try:
        store = dist.FileStore(str(folder / f"store-{world}"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        found = {name: seen(job, device="cpu", watch=rank in watched) for name, (job, watched) in jobs.items()}
        (folder / f"of-{world}-{rank}.json").write_text(json.dumps({name: rows for name, rows in found.items() if rank in jobs[name][1]}))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
