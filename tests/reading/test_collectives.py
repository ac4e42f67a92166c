"""Collectives, launchers, the host, engines, other libraries: causes told from consequences."""

from __future__ import annotations

import pytest

from advisor.reading import read
from reading.failure_texts import VERSIONS

FAILURE = VERSIONS["2.5"]


@pytest.mark.parametrize(
    ("text", "kind", "detail"),
    [
        ("node0:1:2 [3] include/alloc.h:228 NCCL WARN Cuda failure 'out of memory'", "collective", ("what", "out of memory")),
        ("node0:1:2 [3] NCCL WARN Cuda failure 2 'out of memory'", "collective", ("what", "out of memory")),
        ("x:1:2 [0] NCCL WARN Failed to CUDA calloc 6291456 bytes", "collective", ("what", "out of memory")),
        (
            "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 4 (pid: 615) of binary: /usr/bin/python3",
            "host-memory",
            ("exit_code", -9),
        ),
        ("[INFO] [launch.py:316:sigkill_handler] [2025] exits with return code = -9", "host-memory", ("signal", 9)),
        (
            "(raylet) node_manager.cc:3193: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons",
            "host-memory",
            ("what", "ray"),
        ),
        ("exits with return code = -7", "host-memory", ("signal", 7)),
        ("Out of memory: Killed process 4411 (python) total-vm:91234kB, anon-rss:81234kB, file-rss:0kB", "host-memory", ("rss_bytes", 81234 * 1024)),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)", "host-memory", ("constraint", "CONSTRAINT_MEMCG")),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=401.0.", "host-memory", ("what", "slurm")),
        ("Last State: Terminated  Reason: OOMKilled  Exit Code: 137", "host-memory", ("what", "kubernetes")),
        ("Killed", "host-memory", ("what", "killed")),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.1, ID: ab) "
            "where the task was running "
            "was 28.62GB / 30.00GB (0.954017), which exceeds the memory usage threshold of 0.95.",
            "host-memory",
            ("fraction", 0.954017),
        ),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            "host-memory",
            ("what", "shared memory"),
        ),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.", "not-memory", ("required", 147456)),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
            "engine-start",
            ("why", "no-cache"),
        ),
        (
            "ValueError: Free memory on device cuda:0 (2.6/121.63 GiB) on startup is less than desired GPU memory utilization (0.08, 9.73 GiB). "
            "Decrease GPU memory utilization",
            "engine-start",
            ("memory_fraction", 0.08),
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (32768), (4.50 GiB KV cache is needed, which is larger than "
            "the available KV cache memory (1.20 GiB). "
            "Based on the available memory, the estimated maximum model length is 8736.",
            "engine-start",
            ("longest_possible", 8736),
        ),
        ("RuntimeError: CUDA Error: out of memory at /ws/csrc/cumem_allocator.cpp:62", "gpu-driver", ("why", "wake-up")),
        ("Error out of memory at line 380 in file /src/bitsandbytes/csrc/pythonInterface.c", "gpu-driver", ("managed", True)),
        ("Error invalid device ordinal at line 359 in file /src/bitsandbytes/csrc/pythonInterface.c", "not-memory", ("error", "invalid device ordinal")),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", "gpu-memory", None),
        (
            "ResourceExhaustedError: OOM when allocating tensor with shape[64,1024,1024] and type float on "
            "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
            "gpu-memory",
            ("dtype", "float"),
        ),
    ],
)
def test_kinds(text: str, kind: str, detail: tuple[str, object] | None) -> None:
    failure = read([("log.txt", text)]).evidence.failure
    assert failure is not None
    assert failure.kind == kind
    assert detail is None or detail in failure.details


def test_tpu_figures_are_gib() -> None:
    text = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 23.43G of 15.48G hbm. Exceeded hbm capacity by 7.95G."
    )
    failure = read([("e", text)]).evidence.failure
    assert failure is not None and failure.backend == "jax"
    assert failure.capacity_bytes == round(15.48 * 2**30)
    assert dict(failure.details)["over_bytes"] == round(7.95 * 2**30)


def test_the_first_rank_is_named_and_the_others_follow() -> None:
    late = "2025-02-01 10:10:00 [rank0]:[E201 10:10:00.000000000 ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"
    files = [
        ("rank0.log", f"2025-02-01 10:00:00 start\n{late}\n"),
        ("rank5.log", f"2025-02-01 09:59:00 [rank5]: {FAILURE}\n"),
        ("rank6.log", f"2025-02-01 09:59:30 [rank6]: {FAILURE.replace('2.25', '2.50')}\n"),
        ("torchrun.log", "Sending process 611 closing signal SIGTERM\nfailed (exitcode: 1) local_rank: 5 (pid: 615) of binary: python\n"),
    ]
    failures = read(files).evidence.failures
    assert (failures[0].rank, failures[0].kind) == (5, "gpu-memory")
    assert failures[1].rank == 6
    assert all(f.consequence for f in failures if f.kind == "collective")


def test_a_killed_peer_after_a_gpu_failure_is_a_consequence() -> None:
    failures = read([("log.txt", f"{FAILURE}\n\nsome line\nfailed (exitcode: -9) local_rank: 4 (pid: 615) of binary: python\n")]).evidence.failures
    assert [(f.kind, f.consequence) for f in failures] == [("gpu-memory", False), ("host-memory", True)]


def test_nccl_takes_the_frames_of_torchs_exception() -> None:
    text = (
        "node0:1:2 [3] include/alloc.h:228 NCCL WARN Cuda failure 'out of memory'\n[rank3]: Traceback (most recent call last):\n[rank3]:   File "
        '"t.py", line 1, in train\n'
        "[rank3]:     dist.all_reduce(x)\n[rank3]: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:3353, unhandled "
        "cuda error, NCCL version 2.25.1\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'\n"
    )
    failures = read([("e", text)]).evidence.failures
    assert len(failures) == 1
    assert failures[0].rank == 3 and failures[0].frames[0].function == "train"
