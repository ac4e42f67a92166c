"""Which part of the host ran out, as far as the failure says: /dev/shm, pinned memory, a limit, or only that a process was ended by signal 9.

Signal 9 has no reason in it: the kernel's out-of-memory killer sends it, and so do launchers that end the siblings of a failed rank,
schedulers at a time limit, container runtimes after a stop, and people. A worker of a data loader that "exited unexpectedly" says less still.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from advisor.evidence import Evidence
from advisor.reading.collectives import OOM_KILLED
from advisor.reading.pattern import pattern
from advisor.report import Doing, Says
from advisor.rules.observing import CERTAIN, UNSETTLED, WITH_BATCH
from advisor.rules.rule import Form
from advisor.run import Run

Shortage = Literal["shm", "killed", "gone", "said"]
_ONLY_A_SIGNAL = frozenset({"exit code", "torchrun", "signal", "killed", "worker gone"})
_SHM = pattern(r"dev/shm|shared memory|torch_shm|bus error|sigbus|exit ?code:?\s*\(?-7\b|return code = -7\b|mmap \d+ bytes from file </torch", re.IGNORECASE)
_SAID = pattern(
    rf"oom[-_]kill|Out of memory: Kill|Memory cgroup out of memory|{OOM_KILLED}|node running low on memory|"
    r"(?<!\b0 Workers \(tasks / actors\) )killed due to memory pressure|exceeds the memory usage threshold|"
    r"DefaultCPUAllocator|Cannot allocate memory|std::bad_alloc|Out Of Memory\b.*task|OUT_OF_MEMORY",
    re.IGNORECASE,
)
OTHER_REASONS = r"DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)|CANCELLED AT .{0,60}DUE TO|KeyboardInterrupt|PREEMPTED|spot instance|DeadlineExceeded|Evicted"


def shortage(evidence: Evidence) -> Shortage | None:
    """The kind of shortage of a host failure; ``None`` where the first failure is none of the host's."""
    failure = evidence.failure
    if failure is None or failure.kind != "host-memory":
        return None
    details = dict(failure.details)
    if details.get("what") == "shared memory" or details.get("signal") == 7 or _SHM.search(failure.text):
        return "shm"
    if details.get("what") not in _ONLY_A_SIGNAL:
        return "said"
    if "seen-oom-kill" in evidence.marks:
        return "said"
    told = any(f.kind == "host-memory" and dict(f.details).get("what") not in _ONLY_A_SIGNAL for f in evidence.failures)
    if told or any(_SAID.search(line.text) for line in evidence.lines):
        return "said"
    return "gone" if details.get("what") == "worker gone" else "killed"


# Causes that fill a card and leave the host as it was. What passes through the host (loading, saving, merging, gathering) is not among them.
ON_THE_CARD = WITH_BATCH | {
    "fragmentation", "graph-pools", "communication-buffers", "optimizer-temporary", "kernel-unsupported", "capacity", "other-process", "ranks-on-one-gpu",
    "rollout-budget", "framework-upcast", "kbit-upcast", "gradients", "frozen-gradients", "gradients-unsharded", "gradient-buffer-wide", "memory-cap",
}  # fmt: skip
_NOT_THE_CARD = "a card that is full raises an error; it ends no process by a signal, and no error of a card is in the text"


def against(cause: str, evidence: Evidence) -> tuple[Says, ...]:
    """What the failure says of a cause that only fills a card, where a process was killed and nothing tells of a card."""
    if cause not in ON_THE_CARD or shortage(evidence) is None or any(f.kind in ("gpu-memory", "gpu-driver", "engine-start") for f in evidence.failures):
        return ()
    # as certain as the kernel's word: what is known of a card's shortage is that it is raised, never that it kills
    weight = math.log((1 - CERTAIN) / UNSETTLED)
    return (Says(_NOT_THE_CARD, evidence.failure.where if evidence.failure else None, False, weight, f"{cause}-host", _SIGNALS),)


_SIGNALS = "torch.OutOfMemoryError is an exception; a signal comes from the kernel, a launcher or a person"
_DOCKER = ("docker run --shm-size=16g ...", "docker run --ipc=host ...   # or the host's own /dev/shm")
_COMPOSE = ("services:", "  train:", "    shm_size: 16gb", "    # or the host's own /dev/shm: ipc: host")
_KUBERNETES = (
    "spec:",
    "  containers:",
    "  - volumeMounts:",
    "    - {name: dshm, mountPath: /dev/shm}",
    "  volumes:",
    "  - {name: dshm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}   # counts towards the container's memory limit",
)
# transformers TrainingArguments.dataloader_num_workers, which these take too; verl trainer/config/data/legacy_data.yaml; Megatron-LM training/arguments.py
_LOADERS = {
    "hf-trainer": "dataloader_num_workers=0", "trl": "dataloader_num_workers=0", "unsloth": "dataloader_num_workers=0",
    "axolotl": "dataloader_num_workers: 0", "llama-factory": "dataloader_num_workers: 0", "ms-swift": "--dataloader_num_workers 0",
    "verl": "data.dataloader_num_workers=0", "megatron-lm": "--num-workers 0",
}  # fmt: skip


def _no_workers(run: Run) -> dict[str, tuple[str, ...]]:
    """The line that loads batches in the training process, in the user's framework where it has one."""
    name = run.job.framework.name or ""
    return {name: (_LOADERS[name],)} if name in _LOADERS else {"torch": ("DataLoader(..., num_workers=0)",)}


_ASK_KERNEL = (
    "dmesg -T | grep -i -E 'killed process|oom-kill'",
    "cat /sys/fs/cgroup/memory.events   # oom_kill above 0: the container's limit",
)


def form(run: Run, evidence: Evidence) -> Form | None:
    """What the shortage comes to for a person; ``None``: host memory in general."""
    kind = shortage(evidence)
    if kind == "shm":
        why = (
            "Workers hand batches over through files in /dev/shm. Docker gives a container 64 MiB of it unless told otherwise; "
            "the host's RAM may be almost free. With no workers nothing passes through it."
        )
        lines = {"docker": _DOCKER, "docker compose": _COMPOSE, "kubernetes": _KUBERNETES, **_no_workers(run)}
        title = "Give the container more shared memory, or use fewer workers"
        return Form(
            "The shared memory (/dev/shm) ran out, neither the card nor the host's RAM",
            ("reduce-host-memory",),
            {"reduce-host-memory": Doing(title, why, lines)},
        )
    if kind == "killed":
        why = (
            "Signal 9 has no reason in it. Ask the kernel first: if it says that it killed the process, load on one rank or from the meta device, "
            "offload less and use fewer workers; if not, look at the launcher, the scheduler's time limit and the other ranks."
        )
        doing = {"reduce-host-memory": Doing("Ask the kernel whether it ended the process, then use less host memory", why, {"shell": _ASK_KERNEL})}
        return Form("A process was ended by signal 9, as the kernel does where the host's memory runs out", ("reduce-host-memory", "load-sharded"), doing)
    if kind == "gone":
        why = (
            "The loader saw that workers were no longer there, not why: the kernel, a full /dev/shm, or a crash in the worker's own code. "
            "Without workers the loading runs in the training process, which then prints its error."
        )
        lines = {**_no_workers(run), "shell": (*_ASK_KERNEL, "df -h /dev/shm")}
        doing = {"reduce-host-memory": Doing("Load without workers once, and ask the kernel", why, lines)}
        return Form("A worker of the data loader ended, as it does where host memory or /dev/shm runs out", ("reduce-host-memory",), doing)
    return None
