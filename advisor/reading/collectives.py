"""NCCL failures, exit codes and signals, schedulers and the kernel: what is a cause, and what only follows from another rank's failure.

Sources: nccl ``include/alloc.h`` and ``include/checks.h`` ("Cuda failure 'out of memory'", "Failed to CUDA calloc N bytes"); torch
``ProcessGroupNCCL.cpp`` ("NCCL error in", "Watchdog caught collective operation timeout"), ``elastic/multiprocessing/api.py`` ("failed (exitcode:
-9) local_rank: r"); deepspeed ``launcher/launch.py`` ("exits with return code = -9"); Linux ``mm/oom_kill.c``; ray ``MemoryMonitor``; Slurm;
Kubernetes (137 = 128 + 9).
"""

from __future__ import annotations

import re
from typing import Any

from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily
from advisor.units import Size

OOM_KILLED = r"\bOOMKilled\b(?!\"?\s{0,4}[:=]\s{0,4}false)"  # kubelet's reason, and docker inspect's field, which is printed where it is false too
HEAD = lazily(
    r"NCCL WARN|Failed to CUDA|Cuda failure|DistBackendError|ncclUnhandledCudaError|NCCL error|exit ?code|return code|SIGKILL|SIGBUS|SIGTERM|"
    r"Signal (?:7|9|15)\b|oom[-_ ]?kill|OOMKilled|"
    r"Out of memory: Kill|node running low on memory|killed due to memory pressure|"
    r"^Killed\b|\bKilled\s+(?:python|torchrun|accelerate|deepspeed)|Watchdog caught|timed out|"
    r"by signal|on signal|exited unexpectedly|terminated with signal|exit(?:s|ed) with (?:-|code|status)\s?\d?|exit status (?:-\d|1\d\d)|"
    r"Exited \(1\d\d\)|\] Error 1\d\d$|"
    r"Cannot allocate memory|Bus error|"
    r"No space left on device|shared memory|std::bad_alloc|^MemoryError|ArrayMemoryError|Connection reset by peer|ChildFailedError",
    re.IGNORECASE,
)
_NCCL_OOM = lazily(
    r"NCCL WARN (?:\S{0,60} )?(?:Cuda failure (?:\d+ )?'?out of memory'?|Failed to CUDA \w+ (?:async )?(\d+) bytes|Cuda failure 2\b)|"
    r"Cuda failure (?:\d+ )?'out of memory'|^(?:\[\w{1,20}\]: ?)?Failed to CUDA (?:m|c)alloc (?:async )?(\d+) bytes",  # "Last error:" gives the words alone
    re.IGNORECASE | re.MULTILINE,
)
_NCCL_ERROR = lazily(r"NCCL error in|NCCL error: unhandled|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError", re.IGNORECASE)
_PEER = lazily(r"ncclRemoteError|remote process exited|closed by (?:remote )?peer|Connection reset|store->get|aborted", re.IGNORECASE)
_NCCL_RANK = lazily(r":\d{1,10}:\d{1,10} \[(\d{1,4})\]")
_NCCL_VERSION = lazily(r"NCCL version ([\d.]{3,20})", re.IGNORECASE)
_TIMEOUT = lazily(
    r"Watchdog caught collective operation timeout|watchdog (?:thread )?(?:got stuck|timeout)|collective operation timeout|Socket Timeout|"
    r"Timed out waiting|NCCL timeout",
    re.IGNORECASE,
)
_ELASTIC = lazily(r"failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,5})(?: \(pid: (\d{1,10})\))?", re.IGNORECASE)
_SUMMARY = lazily(r"exitcode\s*:\s*(-?\d{1,4})", re.IGNORECASE)
_EXITS = lazily(
    r"exit(?:s|ed)? with (?:return code |exit code |code )?[=:]?\s*(-?\d{1,4})\b|return code\s*[=:]\s*(-?\d{1,4})|"
    r"exit code:?\s*(-?\d{1,4})|exitcode\"?[=: ]\s*(-?\d{1,4})|"
    r"\bExited \((\d{1,3})\)|"  # docker ps, podman ps: the container's state
    r"exit(?:ed with)? status:? (-?\d{1,4})\b|"  # CPython subprocess.CalledProcessError; Go os/exec; batch systems
    r"^g?make(?:\[\d{1,4}\])?: \*\*\* \[.{1,300}\] Error (\d{1,3})$",
    re.IGNORECASE,
)
# a number of a signal: mpirun, PyCharm, Rust's ExitStatus, CPython signal.Signals in CalledProcessError
_BY_SIGNAL = lazily(r"\b(?:by|on|with) signal:? (\d{1,2})\b|\(signal: (\d{1,2}), SIG|died with <Signals\.SIG\w{2,9}: (\d{1,2})>", re.IGNORECASE)
_SIGNAL = lazily(r"Signal (\d{1,2}) \((SIG\w+)\) received by PID (\d{1,10})", re.IGNORECASE)
_CLOSING = lazily(r"(?:Sending process|Killing subprocess|closing signal|Received Signals?\.?SIGTERM|sigkill_handler|received signal 15)", re.IGNORECASE)
_KERNEL = lazily(r"Out of memory: Kill(?:ed)? process (\d{1,10}) \(([^)]{1,40})\)(?:.{0,40}?total-vm:(\d{1,15})kB, anon-rss:(\d{1,15})kB)?", re.IGNORECASE)
_CGROUP = lazily(
    r"oom-kill:constraint=(\w+)|Memory cgroup out of memory: Kill(?:ed)? process (\d{1,10}) \(([^)]{1,40})\)(?:.{0,40}?anon-rss:(\d{1,15})kB)?", re.IGNORECASE
)
_SLURM = lazily(r"Detected (\d{1,6}) oom[-_ ]kill event|oom_kill event|task (\d+): Out Of Memory|OUT_OF_MEMORY", re.IGNORECASE)
_K8S = lazily(OOM_KILLED, re.IGNORECASE)
_RAY = lazily(r"node running low on memory.{0,600}?was ([\d.]{1,12})\s?GB ?/ ?([\d.]{1,12})\s?GB \(([\d.]{1,8})\)", re.IGNORECASE | re.DOTALL)
_RAYLET = lazily(r"\b[1-9]\d{0,5} Workers \(tasks / actors\) killed due to memory pressure", re.IGNORECASE)  # ray src/ray/raylet/node_manager.cc
_SHM = lazily(
    r"Bus error|SIGBUS|insufficient shared memory|out of shared memory|No space left on device.{0,80}shm|"
    r"</torch_.{0,80}No space left on device|unable to (?:open|allocate|write).{0,60}shared memory|"
    r"unable to mmap \d+ bytes from file </torch|shared memory segment /dev/shm",
    re.IGNORECASE | re.DOTALL,
)
_KILLED = lazily(
    r"^(?:\S{0,60}: line \d+:\s+\d+ )?Killed(?:\s|$)|DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) is killed by signal: Killed|"
    r"\bKilled\s+(?:python|torchrun|accelerate|deepspeed)|\bprocess \d{1,5} terminated with signal SIGKILL\b",  # torch multiprocessing/spawn.py
    re.IGNORECASE | re.MULTILINE,
)
# torch utils/data/dataloader.py _try_get_data: workers that are no longer alive, whatever ended them; with an exit code it was an exception of their own
_GONE = lazily(r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) exited unexpectedly(?! with exit code)", re.IGNORECASE)
_DISK = lazily(r"No space left on device", re.IGNORECASE)  # ENOSPC: a file system, where nothing names /dev/shm
_HOST = lazily(r"std::bad_alloc|\[Errno 12\]|Cannot allocate memory|^MemoryError|ArrayMemoryError", re.IGNORECASE | re.MULTILINE)
_KERNEL_SHARED = lazily(r"out of resource: shared memory|OutOfResources", re.IGNORECASE)


def read_failure(text: str) -> Found | None:
    """A failure of a collective, a launcher, a scheduler or the host; ``None`` where the text only looks alike."""
    if _KERNEL_SHARED.search(text):
        need = re.search(r"Required: (\d{1,12}),? Hardware limit: (\d{1,12})", text)
        details: tuple[tuple[str, Any], ...] = (("what", "shared memory of a kernel"),)
        return Found("not-memory", "cuda", details=(*details, ("required", int(need[1])), ("limit", int(need[2]))) if need else details)
    if (m := _NCCL_OOM.search(text)) is not None:
        return _nccl(text, m)
    if _TIMEOUT.search(text):
        return Found("collective", details=(("what", "time-out"),), consequence=True)
    host = _host(text)
    if host is not None:
        return host
    if _NCCL_ERROR.search(text):
        peer = bool(_PEER.search(text))
        return Found("collective", "cuda", details=(("what", "peer gone" if peer else "nccl error"),), consequence=peer)
    return _exit(text)


def _nccl(text: str, match: re.Match[str]) -> Found:
    asked = match[1] or match[2]
    sizes = {"requested": Size(int(asked), 0)} if asked else {}
    rank, version = _NCCL_RANK.search(text), _NCCL_VERSION.search(text)
    details: tuple[tuple[str, Any], ...] = (("what", "out of memory"),)
    if version is not None:
        details += (("nccl", version[1]),)
    return Found("collective", "cuda", int(rank[1]) if rank else None, sizes, details=details)


def _host(text: str) -> Found | None:
    if (m := _RAY.search(text)) is not None:
        return Found("host-memory", details=(("what", "ray"), ("used_gb", float(m[1])), ("total_gb", float(m[2])), ("fraction", float(m[3]))))
    if _RAYLET.search(text):
        return Found("host-memory", details=(("what", "ray"),))
    if (m := _KERNEL.search(text)) is not None:
        rss = (("rss_bytes", int(m[4]) * 1024),) if m[4] else ()
        return Found("host-memory", details=(("what", "kernel"), ("pid", int(m[1])), ("process", m[2]), *rss))
    if (m := _CGROUP.search(text)) is not None:
        rss = (("rss_bytes", int(m[4]) * 1024),) if m[4] else ()
        return Found("host-memory", details=(("what", "container limit"), ("constraint", m[1]), *rss))
    if _SLURM.search(text):
        return Found("host-memory", details=(("what", "slurm"),))
    if _K8S.search(text):
        return Found("host-memory", details=(("what", "kubernetes"), ("exit_code", 137)))
    if _SHM.search(text):
        return Found("host-memory", details=(("what", "shared memory"), ("signal", 7)))
    if _DISK.search(text):
        return Found("not-memory", details=(("what", "disk"),))
    if _HOST.search(text):
        return Found("host-memory", "cpu", details=(("what", "host allocation"),))
    return None


def _exit(text: str) -> Found | None:
    first = text.splitlines()[0] if text else ""
    if (m := _ELASTIC.search(text)) is not None:
        return _code(int(m[1]), (("what", "torchrun"), ("local_rank", int(m[2]))), int(m[2]))
    if (s := _SIGNAL.search(first)) is not None:
        return _code(-int(s[1]), (("what", "signal"), ("signal_name", s[2])))
    if (m := _BY_SIGNAL.search(first)) is not None:
        return _code(-int(next(g for g in m.groups() if g is not None)), (("what", "signal"),))
    if (m := _EXITS.search(first)) is not None:
        return _code(int(next(g for g in m.groups() if g is not None)), (("what", "exit code"),))
    if (m := _SUMMARY.search(first)) is not None:
        return _code(int(m[1]), (("what", "torchrun"),))
    if _CLOSING.search(first):
        return Found("collective", details=(("what", "SIGTERM"), ("signal", 15)), consequence=True)
    if _KILLED.search(first):
        return Found("host-memory", details=(("what", "killed"), ("signal", 9)))
    if _GONE.search(first):
        return Found("host-memory", details=(("what", "worker gone"),))
    return None


def _code(code: int, details: tuple[tuple[str, Any], ...], rank: int | None = None) -> Found | None:
    """What an exit code says: 9 is the kernel's kill, 7 a bus error (/dev/shm), 15 a launcher's; 1 is a Python exception printed elsewhere."""
    signal = -code if -64 < code < 0 else code - 128 if 128 < code < 192 else None
    details += (("exit_code", code), ("signal", signal))
    if signal in (7, 9):
        return Found("host-memory", details=details, rank=rank)
    if signal in (15, 2, 1):
        return Found("collective", details=details, consequence=True, rank=rank)
    if code == 0:
        return None
    return Found("collective", details=details, consequence=True, rank=rank)
