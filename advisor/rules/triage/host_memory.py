"""Host RAM, /dev/shm or pinned memory ran out, not the GPU."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.collectives import OOM_KILLED
from advisor.reading.pattern import pattern
from advisor.rules import host
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom
from advisor.rules.situation import gpus, in_phase, weight_bytes
from advisor.run import Run
from advisor.units import GIB, show

USED_UP = 90.0  # per cent of the host's memory that DeepSpeed prints as used
LARGE = 256 * GIB  # of weights that all ranks of a node read together: more than many hosts have


def _kind(_run: Run, evidence: Evidence) -> str | None:
    return "the first failure is of host memory, not of the GPU" if host.shortage(evidence) in ("shm", "said") else None


def _killed(_run: Run, evidence: Evidence) -> str | None:
    return "a process was ended by signal 9, and nothing says by whom" if host.shortage(evidence) == "killed" else None


def _gone(_run: Run, evidence: Evidence) -> str | None:
    return "a worker process ended, and nothing says why" if host.shortage(evidence) == "gone" else None


def _while_loading(_run: Run, evidence: Evidence) -> str | None:
    loading = host.shortage(evidence) == "killed" and in_phase(evidence, "load", "resume", "save")
    return "it was ended while a checkpoint passed through the host's memory" if loading else None


def _copies(run: Run, evidence: Evidence) -> str | None:
    """Each rank of a node reads the whole checkpoint unless it is told not to."""
    whole, ranks = weight_bytes(run, None, evidence), min(gpus(run), run.job.hardware.gpus_per_node or 8)
    if whole is None or host.shortage(evidence) is None or not in_phase(evidence, "load", None) or whole * ranks < LARGE:
        return None
    return f"{ranks} ranks that each read the weights hold {show(whole * ranks)} of the host's memory"


_PERCENT = pattern(r"CPU Virtual Memory:\s+used = [\d.]{1,12} GB, percent = ([\d.]{1,6})%")


def _used_up(_run: Run, evidence: Evidence) -> str | None:
    for line in reversed(evidence.lines):
        if (found := _PERCENT.search(line.text)) is not None:
            return f"{found.group(1)} % of the host's memory were in use" if float(found.group(1)) >= USED_UP else None
    return None


_SMALL_PINNED = pattern(r"\bWSL ?2?\b|\bWindows\b")
_PINNED = pattern(r"\bpinned\b|\bpin_memory\b|use_gradient_checkpointing\s?=\s?[\"']unsloth", re.IGNORECASE)


def _pinned(run: Run, evidence: Evidence) -> str | None:
    """The driver's own error without counters, where much is pinned in host memory and the system gives little of that."""
    failure, offload = evidence.failure, run.job.offload
    if failure is None or failure.requested_bytes is not None or failure.allocated_bytes is not None or failure.kind not in ("gpu-memory", "gpu-driver"):
        return None
    lines = [line.text for line in evidence.lines]
    pins = any(_PINNED.search(text) for text in lines) or "cpu" in (offload.activations, offload.optimizer, offload.parameters)
    small = next((line for line in evidence.lines if _SMALL_PINNED.search(line.text)), None)
    return f"the driver refused memory without PyTorch's counters, with tensors pinned in host memory ({small.where})" if pins and small is not None else None


def _gpu_first(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    full = failure is not None and failure.kind == "gpu-memory" and failure.allocated_bytes is not None
    return "the first failure prints counters of a GPU" if full else None


RULE = Rule(
    id="host-memory",
    tier="triage",
    title="Host memory ran out, not the GPU's",
    cleared="No sign of the host's out-of-memory killer, of /dev/shm or of a failed host allocation.",
    prior=-1.0,
    marks=(
        Mark(
            "host-memory-pinned-little",
            4.0,
            "pinned memory",
            "CUDA on WSL user guide: pinned system memory is limited; cudaHostAlloc fails as out of memory",
            when=_pinned,
        ),
        Mark("host-memory-kind", 3.0, "host failure", "the reader's class of the failure text", when=_kind),
        Mark("host-memory-gpu-first", -3.0, "GPU counters", "CUDACachingAllocator prints them for device memory only", when=_gpu_first),
        Mark(
            "host-memory-killed",
            2.2,
            "ended by signal 9",
            "torch elastic and DeepSpeed's launcher print the child's exit code: -9 is SIGKILL, 137 is 128 + 9. The kernel's out-of-memory killer sends it, "
            "and so do launchers (to the siblings of a failed rank), schedulers and people",
            when=_killed,
        ),
        Mark(
            "host-memory-worker-gone",
            1.6,
            "a worker ended",
            "torch/utils/data/dataloader.py _try_get_data: 'DataLoader worker (pid(s) n) exited unexpectedly' where workers are not alive, whatever ended them;"
            " ray exceptions.py ActorDiedError: 'The actor died unexpectedly before finishing this task'",
            when=_gone,
        ),
        Mark("host-memory-while-loading", 1.0, "while loading", "from_pretrained and torch.load read through the host's memory", when=_while_loading),
        Mark("host-memory-copies", 0.7, "a copy for each rank", "each process of torchrun runs from_pretrained by itself", when=_copies),
        Mark("host-memory-used-up", 2.5, "host nearly full", "deepspeed runtime/utils.py see_memory_usage: psutil.virtual_memory().percent", when=_used_up),
        Mark(
            "host-memory-other-reason",
            -4.0,
            "the scheduler or a person ended it for another reason",
            "slurmstepd '*** JOB n CANCELLED AT ... DUE TO TIME LIMIT ***'; kubelet's eviction and deadline reasons",
            pattern=host.OTHER_REASONS,
            when=lambda _, e: "" if host.shortage(e) in ("killed", "gone", None) else None,
        ),
        Mark(
            "host-memory-cgroup",
            4.5,
            "the kernel or the batch system reports an out-of-memory kill",
            "Linux mm/oom_kill.c 'Out of memory: Killed process', 'oom-kill:constraint='; slurmstepd 'Detected n oom-kill event(s)'; kubelet: OOMKilled",
            pattern=r"oom[-_]kill|Out of memory: Kill(ed)? process|Memory cgroup out of memory|" + OOM_KILLED,
        ),
        Mark(
            "host-memory-ray",
            4.5,
            "Ray's memory monitor ended a worker",
            "ray memory_monitor, worker_killing_policy; raylet node_manager.cc: 'n Workers (tasks / actors) killed due to memory pressure (OOM)'",
            pattern=r"node running low on memory|(?<!\b0 Workers \(tasks / actors\) )killed due to memory pressure|exceeds the memory usage threshold",
        ),
        Mark(
            "host-memory-allocator",
            4.5,
            "a host allocation failed",
            "c10/core/impl/alloc_cpu.cpp: DefaultCPUAllocator",
            pattern=r"DefaultCPUAllocator: (can't allocate|not enough) memory|Cannot allocate memory|std::bad_alloc",
        ),
        Mark(
            "host-memory-pinned",
            3.0,
            "page-locked or managed host memory could not be had",
            "cudaHostAlloc in at::cuda CachingHostAllocator; bitsandbytes pythonInterface.c get_managed_ptr (cudaMallocManaged)",
            pattern=r"pin_memory.*out of memory|CachingHostAllocator|cudaHostAlloc|pythonInterface\.c",
        ),
        Mark(
            "host-memory-pin-frame",
            4.0,
            "the failure comes while host memory is page-locked",
            "torch.Tensor.pin_memory -> cudaHostAlloc reports the host's shortage as a CUDA error without counters; vLLM device_allocator/cumem.py sleep "
            "backs weights up in pinned memory; torchtune _activation_offloading.py pack_tensor: cpu_tensor = torch.empty_like(..., pin_memory=)",
            pattern=r"pin_memory\(|:pin_memory|\bcpu_(?:tensor|buffer)\s?=\s?torch\.(?:empty|zeros)|cumem\.py:sleep\b|cpu_backup\w*\s?=\s?torch\.empty\(|_pin_memory_loop|CachingHostAllocator|pin_memory\s?=\s?(?!False)[\w.]+",
            on="frame",
            when=lambda _, e: "" if e.failure is not None and e.failure.allocated_bytes is None else None,
        ),
        Mark(
            "host-memory-shm",
            4.0,
            "shared memory of the container is exhausted",
            "torch/utils/data/_utils/signal_handling.py: 'It is possible that dataloader's workers are out of shared memory'",
            pattern=r"insufficient shared memory|out of shared memory\. Please try|No space left on device.*/dev/shm|Bus error",
        ),
        Mark(
            "host-memory-offload",
            1.0,
            "the optimizer or parameters are kept in host memory",
            "DeepSpeed and FSDP offload hold them in pinned RAM",
            when=lambda run, e: (
                "" if host.shortage(e) in ("said", "killed", "gone") and (run.job.offload.optimizer == "cpu" or run.job.offload.parameters == "cpu") else None
            ),
        ),
    ),
    form=host.form,
    remedies=("reduce-host-memory", "load-sharded", "load-in-16-bit", "eight-bit-optimizer"),
    fires=(
        Example(
            "killed while loading",
            text="torch.distributed.elastic.multiprocessing.api: failed (exitcode: -9) local_rank: 3 (pid: 4411) of binary: /usr/bin/python3\n",
        ),
        Example("a container's limit", text="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9.0. Some of your processes may have been killed.\n"),
        Example(
            "a host tensor",
            text=(
                "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                "64424509440 bytes.\n"
            ),
        ),
    ),
    quiet=(Example("the card is full", text=oom("512.00 MiB", allocated=76.5, unallocated=1.2)),),
)
