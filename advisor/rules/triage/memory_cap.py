"""A per-process fraction, MIG slice or container limit is smaller than the card."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import counters
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom
from advisor.run import Run
from advisor.units import GIB, show


def _allowed(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    if failure is None or failure.allowed_bytes is None or failure.capacity_bytes is None or failure.backend == "mps":
        return None  # Apple's "max allowed" is always printed: it is the watermark that applies without any setting
    return f"{show(failure.allowed_bytes)} of the card's {show(failure.capacity_bytes)} are allowed to this process"


def _slice(run: Run, evidence: Evidence) -> str | None:
    capacity = counters.of(evidence).capacity
    named = run.facts.get("hardware.gpu")
    if capacity is None or run.card is None or (named is not None and named.why == "a remark"):
        return None  # a card that is only spoken of ("4 A100") may as well be another one
    usable, _ = run.card.usable()
    if capacity < 0.8 * usable:
        return f"the failing device has {show(capacity)} where a whole {run.card.name} has {show(usable)}"
    return None


def _free_left(_run: Run, evidence: Evidence) -> str | None:
    figures = counters.of(evidence)
    if figures.free is None or figures.requested is None or figures.capacity is None or figures.requested > figures.capacity:
        return None
    if figures.free < max(GIB, 0.1 * figures.capacity):  # cudaMalloc can fail with a little left: pages, other ranks' races
        return None
    return f"{show(figures.free)} are free and {show(figures.requested)} were refused" if figures.free > figures.requested * 1.05 else None


def _mig(_run: Run, evidence: Evidence) -> str | None:
    return "nvidia-smi shows MIG slices" if any(d.mig for d in evidence.devices) else None


RULE = Rule(
    id="memory-cap",
    tier="triage",
    title="A limit smaller than the card applies to this process",
    cleared="The text prints no per-process limit, and the device has the card's full size.",
    prior=-1.5,
    marks=(
        Mark(
            "memory-cap-allowed",
            5.0,
            "a cap is set",
            "c10 CUDACachingAllocator prints '<size> allowed' when set_per_process_memory_fraction was called",
            when=_allowed,
        ),
        Mark("memory-cap-slice", 3.5, "smaller than the card", "cudaMemGetInfo's total is that of the MIG instance", when=_slice),
        Mark("memory-cap-mig", 2.0, "MIG", "nvidia-smi's MIG table", when=_mig),
        Mark(
            "memory-cap-mig-name",
            2.5,
            "the visible device is a MIG instance",
            "nvidia-smi -L prints 'MIG 1g.10gb Device 0: (UUID: MIG-...)'; CUDA_VISIBLE_DEVICES takes that UUID",
            pattern=r"\bMIG \d{1,2}g\.\d{1,3}gb\b|CUDA_VISIBLE_DEVICES\W{1,3}MIG-",
        ),
        Mark("memory-cap-free", 2.5, "enough is free", "cudaMalloc fails below the device's limit only under a cap", when=_free_left),
        Mark(
            "memory-cap-call",
            1.5,
            "the process limits itself",
            "torch.cuda.set_per_process_memory_fraction; torch.mps high watermark",
            pattern=r"set_per_process_memory_fraction|per_process_memory_fraction|HIGH_WATERMARK_RATIO\s*=\s*0?\.[0-9]*[1-9]",
        ),
    ),
    remedies=("raise-memory-cap",),
    fires=(
        Example(
            "half of the card is allowed",
            text=(
                "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 39.59 GiB total capacity; 19.50 GiB already allocated; "
                "19.20 GiB free; 19.79 GiB allowed; 19.60 GiB reserved in total by PyTorch)\n"
            ),
        ),
        Example(
            "a MIG slice of an A100",
            job="version: 1\nmodel: {name: Qwen/Qwen2.5-1.5B}\nhardware: {gpu: a100-80gb}\n",
            text="  MIG 1g.10gb     Device  0: (UUID: MIG-2e4a1c)\n" + oom("264.00 MiB", allocated=8.8, capacity=9.5, free=0.1),
        ),
    ),
    quiet=(Example("no limit", text=oom("512.00 MiB", allocated=76.5, unallocated=1.2)),),
)
