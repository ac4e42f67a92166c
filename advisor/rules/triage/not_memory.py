"""The text is not a memory error: shared memory of a kernel, a wrong shape, an overflowing size."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom, trace
from advisor.run import Run
from advisor.units import show


def _kind(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    if failure is None or failure.kind != "not-memory":
        return None
    told = dict(failure.details)
    if told.get("what") == "scheduler":
        return f"the scheduler ended the job for a reason of its own ({told['reason']})"
    return "the failure text does not report memory that ran out"


def _memory(_run: Run, evidence: Evidence) -> str | None:
    memory = any(f.kind in ("gpu-memory", "host-memory") and not _absurd_size(f.requested_bytes) for f in evidence.failures)
    return "another text of the same run reports memory that ran out" if memory else None


def _absurd_size(size: int | None) -> bool:
    return size is not None and size >= 1 << 50


def _waited(_run: Run, evidence: Evidence) -> str | None:
    """Ranks waited for one another in vain, and no text says that memory ran out anywhere."""
    if not evidence.failures or any(f.kind != "collective" for f in evidence.failures):
        return None
    told = {dict(f.details).get("what") for f in evidence.failures}
    return "a rank waited for another one until the time was over: what stopped the other one is not shown" if told == {"time-out"} else None


ROOM = 0.5  # of a card: a handle or a workspace is some MB


def _room(_run: Run, evidence: Evidence) -> str | None:
    """A library's handle could not be made on a card that is more than half empty: an earlier kernel failed, and this call is where it shows."""
    failure = evidence.failure
    if failure is None or failure.kind != "gpu-driver" or dict(failure.details).get("driver") not in ("cublas", "cudnn", "cusolver"):
        return None
    sized = [d for d in evidence.devices if d.used_bytes is not None and d.total_bytes]
    if not sized or any((d.used_bytes or 0) > ROOM * (d.total_bytes or 0) for d in sized):
        return None
    device = sized[0]
    return f"{show((device.total_bytes or 0) - (device.used_bytes or 0))} of the card are free ({device.where}), and a handle takes some MB"


def _overflow(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    return "the requested size is larger than any machine: a length or product overflowed" if failure and _absurd_size(failure.requested_bytes) else None


RULE = Rule(
    id="not-memory",
    tier="triage",
    title="This is not a memory error",
    cleared="The failure is one of memory.",
    prior=-1.0,
    marks=(
        Mark("not-memory-kind", 5.0, "no memory error", "the reader's class of the failure text", when=_kind),
        Mark("not-memory-also-memory", -4.0, "memory as well", "the other failure's text", when=_memory),
        Mark("not-memory-overflow", 5.0, "overflowing size", "c10 CUDACachingAllocator: 'Tried to allocate more than 1EB memory'", when=_overflow),
        Mark(
            "not-memory-room",
            4.5,
            "the card has room",
            "CUDA reports an earlier kernel's error at a later call: an index beyond a table, shown as it is with CUDA_LAUNCH_BLOCKING=1 or on the CPU",
            when=_room,
        ),
        Mark("not-memory-waited", 3.0, "a rank waited in vain", "ProcessGroupNCCL: 'Watchdog caught collective operation timeout'", when=_waited),
        Mark(
            "not-memory-shared",
            4.0,
            "a kernel's on-chip shared memory is meant, not the card's memory",
            "triton/runtime/errors.py OutOfResources: 'out of resource: shared memory, Required: n, Hardware limit: m'; torch inductor static launcher, "
            "as an OutOfMemoryError: 'out of resource: kernel Required: n Hardware limit:m'",
            pattern=r"OutOfResources|out of resource: (shared memory|threads|registers)|out of resource: \S+,? Required: \d+,? Hardware limit|"
            r"ptxas\b.{0,120}\b(too much shared data|shared memory)\b",
        ),
        Mark(
            "not-memory-shape",
            3.0,
            "operands have shapes that do not fit each other",
            "ATen native/LinearAlgebra.cpp shape checks",
            pattern=r"shapes cannot be multiplied|size mismatch for|must match the size of tensor",
        ),
        Mark(
            "not-memory-flatten",
            3.0,
            "FSDP puts weights of one float dtype in a flat tensor: 4-bit weights need bnb_4bit_quant_storage equal to the dtype of the others",
            "torch fsdp/_flat_param.py _validate_tensors_to_flatten: 'Cannot flatten integer dtype tensors', 'Must flatten tensors with uniform dtype'",
            pattern=r"Cannot flatten integer dtype tensors|Must flatten tensors with uniform dtype",
        ),
        Mark(
            "not-memory-devices",
            4.0,
            "operands lie on different devices",
            "ATen TensorIterator.cpp: 'Expected all tensors to be on the same device, but found at least two devices'",
            pattern=r"Expected all tensors to be on the same device",
            when=lambda _, e: None if e.failure is not None and e.failure.allocated_bytes is not None else "",
        ),
        Mark(
            "not-memory-assert",
            2.5,
            "a kernel stopped at a wrong index or address",
            "CUDA runtime: device-side assert, illegal memory access",
            pattern=r"device-side assert triggered|illegal memory access",
        ),
        Mark(
            "not-memory-kernel-assert",
            4.0,
            "a kernel's assertion failed before: what follows is its consequence",
            "ATen native/cuda: CUDA_KERNEL_ASSERT prints 'file:line: function: block: [..], thread: [..] Assertion `..` failed.'; later calls fail in any way",
            pattern=r"block: \[\d+,\s?\d+,\s?\d+\], thread: \[[\d, ]+\] Assertion `",
            when=lambda _, e: None if e.failure is not None and e.failure.allocated_bytes is not None else "",
        ),
        Mark(
            "not-memory-nonfinite",
            5.0,
            "values are not finite, and nothing says that memory ran out",
            "torch clip_grad_norm_: 'The total norm ... is non-finite'; loggers print loss or grad_norm as nan; apex: 'Gradient overflow. Skipping step'",
            pattern=(
                r"non-?finite (grad|loss|norm|value)|\b(grad(ient)?[_ ]?norm|loss)['\"]?\s*[:=]\s*'?(nan|[-+]?inf)\b|total norm .{0,80}non-finite|"
                r"\bloss (is|became|becomes) (nan|inf)|Function '\w+' returned nan values"
            ),
            when=lambda _, e: "" if e.failure is None else None,
        ),
        Mark(
            "not-memory-managed",
            1.5,
            "managed memory is not available on this platform",
            "bitsandbytes csrc/pythonInterface.c get_managed_ptr: cudaMallocManaged; WSL and Windows do not support it fully (CUDA on WSL user guide)",
            pattern=r"pythonInterface\.c",
        ),
    ),
    remedies=("correct-launch", "upgrade"),
    fires=(
        Example(
            "a rank that waits",
            text="[E ProcessGroupNCCL.cpp:457] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=11)\n",
        ),
        Example(
            "a wrong shape",
            text=trace("torch/nn/modules/linear.py|forward|return F.linear(input, self.weight, self.bias)")
            + "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4096x2048 and 4096x4096)\n",
        ),
        Example(
            "a kernel's shared memory",
            text=trace("triton/runtime/jit.py|run|kernel = self.compile(")
            + "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, Hardware limit: 101376\n",
        ),
        Example("the assembler's word for it", text="ptxas error   : Entry function 'k_0d1d' uses too much shared data (0x1c400 bytes, 0x18c00 max)\n"),
        Example(
            "the same from inductor's own launcher, as an out-of-memory error",
            text="torch.OutOfMemoryError: out of resource: triton_per_fused_add_7 Required: 73728 Hardware limit:49152 "
            "Reducing block sizes or `num_stages` may help.\n",
        ),
    ),
    quiet=(Example("the card is full", text=oom("512.00 MiB", allocated=76.5, unallocated=1.2)),),
)
