"""Host RAM, /dev/shm or pinned memory ran out, not the GPU."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom
from advisor.run import Run


def _kind(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    return "the first failure is of host memory, not of the GPU" if failure is not None and failure.kind == "host-memory" else None


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
        Mark("host-memory-kind", 3.0, "host failure", "the reader's class of the failure text", when=_kind),
        Mark("host-memory-gpu-first", -3.0, "GPU counters", "CUDACachingAllocator prints them for device memory only", when=_gpu_first),
        Mark(
            "host-memory-killed",
            3.5,
            "a process was ended by signal 9, which is how the kernel's out-of-memory killer ends it",
            "torch elastic and DeepSpeed's launcher print the child's exit code; -9 is SIGKILL, 137 is 128 + 9",
            pattern=r"exit ?code\s*[:=]?\s*\(?-9\b|return code = -9\b|exit code:? 137\b|SIGKILL|\bOOMKilled\b",
        ),
        Mark(
            "host-memory-cgroup",
            4.5,
            "the kernel or the batch system reports an out-of-memory kill",
            "Linux mm/oom_kill.c 'Out of memory: Killed process', 'oom-kill:constraint='; slurmstepd 'Detected n oom-kill event(s)'",
            pattern=r"oom[-_]kill|Out of memory: Kill(ed)? process|Memory cgroup out of memory",
        ),
        Mark(
            "host-memory-ray",
            4.5,
            "Ray's memory monitor ended a worker",
            "ray memory_monitor / worker_killing_policy message",
            pattern=r"node running low on memory|exceeds the memory usage threshold",
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
            "torch.Tensor.pin_memory -> cudaHostAlloc reports the host's shortage as a CUDA error without counters",
            pattern=r"pin_memory\(|:pin_memory|_pin_memory_loop|CachingHostAllocator",
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
            when=lambda run, e: "" if _kind(run, e) and (run.job.offload.optimizer == "cpu" or run.job.offload.parameters == "cpu") else None,
        ),
    ),
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
