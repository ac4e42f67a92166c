"""Several ranks of the job sit on the same device."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import observed, processes, told_ranks
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom
from advisor.run import Run


def _foreign_like_own(run: Run, evidence: Evidence) -> str | None:
    """Others' processes on the card are each about as large as this one: the same program, several times."""
    alike = processes.like_own(evidence)
    return f"{alike} other processes on the card are each about as large as this one" if alike >= 2 or (alike and run.world > 1) else None


RULE = Rule(
    id="ranks-on-one-gpu",
    tier="triage",
    title="Several ranks of the job sit on the same card",
    cleared="Each rank is on a card of its own, as far as the texts show.",
    prior=-1.5,
    marks=(
        Mark(
            "ranks-on-one-gpu-nccl",
            5.0,
            "NCCL saw two ranks on one device",
            "NCCL init.cc prints 'Duplicate GPU detected : rank r and rank s both on CUDA device d'",
            pattern=r"Duplicate GPU detected\s*:\s*rank \d+ and rank \d+",
        ),
        Mark(
            "ranks-on-one-gpu-doubled",
            3.5,
            "one pid on two cards",
            "nvidia-smi lists a context of a process on each card that it touched",
            when=lambda _, e: processes.own_ranks(e),
        ),
        Mark("ranks-on-one-gpu-crowded", 3.0, "crowded card", "nvidia-smi's process table", when=lambda _, e: processes.crowded(e)),
        Mark(
            "ranks-on-one-gpu-contexts",
            4.0,
            "bare contexts of other ranks",
            "a CUDA context is made on the current device, 0 until set_device, by the first call that needs one (torch.load, empty_cache, pin_memory, NCCL)",
            when=lambda _, e: processes.contexts(e),
        ),
        Mark(
            "ranks-on-one-gpu-printed",
            3.5,
            "the same device is printed",
            "torch.cuda.current_device of each rank",
            when=lambda _, e: processes.same_device_printed(e),
        ),
        Mark(
            "ranks-on-one-gpu-listed",
            5.0,
            "bare contexts of other ranks",
            "c10 CUDACachingAllocator.cpp reportProcessMemoryInfo lists every process on the card, by NVML",
            when=lambda _, e: processes.alike_in_error(e),
        ),
        Mark(
            "ranks-on-one-gpu-row",
            3.5,
            "started together on one card",
            "torch elastic and the DeepSpeed launcher fork one worker after the other (Popen); c10 CUDACachingAllocator.cpp prints their pids",
            when=lambda _, e: processes.started_together(e),
        ),
        Mark("ranks-on-one-gpu-together", 3.0, "started together on one card", "nvidia-smi's process table", when=lambda _, e: processes.all_here(e)),
        Mark(
            "ranks-on-one-gpu-same",
            2.0,
            "same card in errors",
            "each rank prints the index of its current device",
            when=lambda _, e: processes.same_gpu_in_errors(e),
        ),
        Mark(
            "ranks-on-one-gpu-first",
            3.0,
            "a later rank on the first card",
            "torch.cuda: 'cuda' without an index is the current device, and that is 0 until set_device",
            when=lambda _, e: processes.rank_on_first(e),
        ),
        Mark("ranks-on-one-gpu-alike", 4.0, "processes alike", "the process lines of the error (c10 CUDACachingAllocator, NVML)", when=_foreign_like_own),
        Mark(
            "ranks-on-one-gpu-told",
            3.0,
            "the first card fills",
            "torch.cuda: what runs before set_device makes its context, and its tensors, on device 0",
            when=lambda _, e: observed.first_card_fills(e),
        ),
        Mark(
            "ranks-on-one-gpu-first-alone",
            2.0,
            "the first card alone",
            "torch.cuda: what runs before set_device makes its context, and its tensors, on device 0; torch.load restores to the device that saved",
            when=lambda _, e: told_ranks.first_alone(e),
        ),
        Mark(
            "ranks-on-one-gpu-code",
            2.5,
            "the processes never choose a device: all use the first",
            "torch.cuda: the current device is 0 until set_device",
            pattern=r"^code\.(never-chooses-device)=",
            on="key",
        ),
        Mark(
            "ranks-on-one-gpu-load",
            0.8,
            "each rank reads a checkpoint to the card that saved it",
            "torch/serialization.py default_restore_location",
            pattern=r"^code\.(loads-where-saved)=",
            on="key",
            when=lambda run, _: "" if run.world > 1 else None,
        ),
    ),
    remedies=("map-each-rank", "correct-launch"),
    fires=(
        Example(
            "two ranks on device 0",
            text="node0:41:52 [0] init.cc:880 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000\n"
            + oom("512.00 MiB", allocated=37.0, unallocated=0.5, capacity=79.1, own=38.1),
        ),
    ),
    quiet=(Example("one process, one card", text=oom("512.00 MiB", allocated=76.5, unallocated=1.2)),),
)
