"""Another process, or a dead run's leftover, holds the card."""

from __future__ import annotations

import re

from advisor.arithmetic.outside import CONTEXT_EAGER, CONTEXT_LOW, NCCL
from advisor.deviation import foreign
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.report import Doing
from advisor.rules import counters, observed, processes, told_ranks
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import oom
from advisor.rules.situation import TRAINING, colocated, gpus, in_phase
from advisor.run import Run
from advisor.units import GIB, MIB, show

_USED_OF = pattern(r"(?<![\d.])(\d{3,6})\s?MiB\s?/\s?(\d{4,6})\s?MiB")  # nvidia-smi's pair, in a sentence
LEAST_FOREIGN = 2 * GIB  # beyond any context, communicator and library together
LEAST_SHARE = 0.05


def _held(_run: Run, evidence: Evidence) -> int:
    figures = counters.of(evidence)
    if figures.foreign is None or figures.capacity is None:
        return 0
    least = max(min(LEAST_FOREIGN, figures.capacity // 4), LEAST_SHARE * figures.capacity)
    return figures.foreign if figures.foreign >= least else 0


def _remainder(run: Run, evidence: Evidence) -> str | None:
    held, figures = _held(run, evidence), counters.of(evidence)
    if not held or figures.capacity is None:
        return None
    return f"{show(held)} of the {show(figures.capacity)} belong to none of this process: capacity less free less what it holds itself"


CONTEXT = CONTEXT_EAGER  # the largest context of one process that was measured
CONTEXT_OF_MANY = CONTEXT + 3 * NCCL  # with the buffers of three communicators: the world and two groups within it


def _unaccounted(run: Run, evidence: Evidence) -> str | None:
    """The text names no own share: what is neither free nor reserved is larger than a context, though not beyond any context."""
    failure, figures = evidence.failure, counters.of(evidence)
    if failure is None or failure.own_bytes is not None or failure.allowed_bytes is not None or _held(run, evidence):
        return None
    if figures.capacity is None or figures.free is None or figures.reserved is None:
        return None
    outside = figures.capacity - figures.free - figures.reserved
    over = outside - (CONTEXT_OF_MANY if gpus(run) > 1 else CONTEXT)
    if over < max(GIB // 2, 0.1 * figures.capacity):
        return None
    return f"{show(outside)} are neither free nor reserved by this process, more than a CUDA context takes"


def _most(run: Run, evidence: Evidence) -> str | None:
    held, figures = _held(run, evidence), counters.of(evidence)
    own = figures.reserved or 0
    return f"others hold {show(held)}, this process {show(own)}" if held > own else None


def _before_start(_run: Run, evidence: Evidence) -> str | None:
    figures = counters.of(evidence)
    for device in evidence.devices:
        if device.used_bytes and figures.reserved is not None and figures.capacity and not processes.own_ranks(evidence):
            others = device.used_bytes - figures.reserved
            fits = abs(figures.capacity - device.used_bytes - (figures.free or 0) - figures.reserved) < counters.CONTEXT_HIGH
            if fits and others > LEAST_FOREIGN:
                return f"nvidia-smi shows {show(device.used_bytes)} in use where this process holds {show(figures.reserved)}: the two fill the card together"
    return None


def _driver(_run: Run, evidence: Evidence) -> str | None:
    """The driver had nothing left before PyTorch's allocator held anything: no counters are printed then."""
    failure = evidence.failure
    if failure is None or failure.kind != "gpu-driver" or failure.allocated_bytes is not None:
        return None
    full = [d for d in evidence.devices if d.used_bytes and d.total_bytes and d.used_bytes > 0.8 * d.total_bytes]
    return f"the driver itself had no memory left, and nvidia-smi shows {show(full[0].used_bytes or 0)} in use" if full else None


def _unlisted(_run: Run, evidence: Evidence) -> str | None:
    """A card in use, of which nothing is listed, and the reporter says that nothing of theirs runs on it."""
    if evidence.failure is None or evidence.failure.allocated_bytes is not None or (where := observed.nobody_runs(evidence)) is None:
        return None
    for device in evidence.devices:
        if device.used_bytes and device.used_bytes >= LEAST_FOREIGN and not device.processes:
            return f"{show(device.used_bytes)} are in use and no process is listed ({device.where}), where nothing of the job runs ({where})"
    for line in evidence.lines if not evidence.devices else ():
        if (found := _USED_OF.search(line.text)) is not None and int(found[1]) * MIB >= max(LEAST_FOREIGN, 0.5 * int(found[2]) * MIB):
            return f"{show(int(found[1]) * MIB)} are in use ({line.where}), where nothing of the job runs ({where})"
    return None


FULL = 0.8  # of the card
LEAST_OF_ONE = 0.1  # of the card: no context and no desktop is as large


def _listed(run: Run, evidence: Evidence) -> str | None:
    """Where no counters are printed: a card that is nearly full, and processes of two programs on it, the larger of which holds a good part."""
    failure = evidence.failure
    if (failure is not None and failure.allocated_bytes is not None) or colocated(run):
        return None
    for device in evidence.devices:
        if not device.used_bytes or not device.total_bytes or device.used_bytes < FULL * device.total_bytes:
            continue
        held: dict[str, int] = {}
        for process in device.processes:
            # what holds less than a context is no program of CUDA
            if process.name and (process.used_bytes or 0) >= CONTEXT_LOW and not processes.of_desktop(process.name):
                held[process.name] = held.get(process.name, 0) + (process.used_bytes or 0)
        ranked = sorted(held.items(), key=lambda item: -item[1])
        if len(ranked) > 1 and ranked[0][1] >= LEAST_OF_ONE * device.total_bytes:
            (first, most), (second, less) = ranked[:2]
            return f"{show(most)} of the {show(device.total_bytes)} belong to {first}, {show(less)} to {second} ({device.where})"
    return None


_PREALLOCATES = pattern(
    r"\b(?:import|from) (?:jax|tensorflow|flax|cupy)\b|^(?:jax|jaxlib|tensorflow(?:-gpu)?|cupy\S*)\s+\d|xla_client|XLA_PYTHON_CLIENT", re.IGNORECASE
)
OUTSIDE = 0.25  # of the card: no context, communicator or library's workspace is as large


def _another_library(run: Run, evidence: Evidence) -> str | None:
    """This process itself holds much that PyTorch does not account for, and the texts name a library that takes most of a card when it is first used."""
    failure = evidence.failure
    if failure is None or failure.capacity_bytes is None or colocated(run):
        return None
    outside = dict(failure.details).get("outside_pytorch_bytes", 0)
    if outside < OUTSIDE * failure.capacity_bytes:
        return None
    named = next((line for line in evidence.lines if _PREALLOCATES.search(line.text)), None)
    if named is None:
        return None
    return f"{show(outside)} of what this process holds are not PyTorch's, and {named.where} names a library that takes most of a card at once"


def _form(run: Run, evidence: Evidence) -> Form | None:
    """The other holder may be in this very process."""
    if _another_library(run, evidence) is None:
        return None
    lines = {
        "environment": (
            "XLA_PYTHON_CLIENT_PREALLOCATE=false   # JAX asks for memory as it needs it, instead of three quarters of the card at once",
            "JAX_PLATFORMS=cpu                     # where JAX is only imported by another package",
            "TF_FORCE_GPU_ALLOW_GROWTH=true        # TensorFlow, likewise",
        )
    }
    why = "The memory is held by this process, by another library in it: ending other processes frees nothing."
    doing = Doing("Keep the other library off the card", why, lines)
    return Form("Another library in this process holds part of the card", ("free-other-process",), {"free-other-process": doing})


_MEANT = pattern(
    r"\b(?:vllm|sglang|server|engine|teacher|reward model|another (?:job|process|model))\b[^.;\n]{0,120}\b(?:meant to be|on purpose|intended|deliberate\w*|"
    r"as planned|by design|(?:is|are) expected)\b(?! to\b)",
    re.IGNORECASE,
)


def _meant(_run: Run, evidence: Evidence) -> str | None:
    """The reporter says that what else is on the card is to be there."""
    line = next((line for line in evidence.lines if _MEANT.search(line.text)), None)
    return f"the other process is meant to be there, as is written in {line.where}" if line is not None else None


def _explained_by_engine(run: Run, evidence: Evidence) -> str | None:
    return "a generation engine of the same job shares the card" if colocated(run) and _held(run, evidence) else None


def _explained_by_ranks(_run: Run, evidence: Evidence) -> str | None:
    own = processes.own_ranks(evidence) or processes.alike_in_error(evidence) or processes.rank_on_first(evidence)
    own = own or processes.same_device_printed(evidence) or observed.first_card_fills(evidence) or processes.all_here(evidence)
    alike = processes.like_own(evidence) >= processes.LEAST_ALIKE
    return "the other processes on the card are ranks of this job" if own or alike else None


def _fault(run: Run, evidence: Evidence) -> Run | None:
    held = _held(run, evidence)
    return run.deviating(foreign(held, cause="other-process")) if held else None


RULE = Rule(
    id="other-process",
    tier="triage",
    title="Another process holds part of the card",
    cleared="Free memory and what this process holds account for the whole card: no other process.",
    prior=-1.5,
    marks=(
        Mark("other-process-remainder", 4.0, "memory of others", "identity capacity = free + sum over processes (cudaMemGetInfo, NVML)", when=_remainder),
        Mark("other-process-unaccounted", 3.0, "not accounted for", "the same identity, with a context as large as it gets", when=_unaccounted),
        Mark(
            "other-process-library",
            5.0,
            "another library in this process",
            "JAX docs gpu_memory_allocation: 75 % of the card at the first operation; tensorflow config.experimental.set_memory_growth",
            when=_another_library,
        ),
        Mark("other-process-most", 1.5, "others hold most", "the same identity", when=_most),
        Mark(
            "other-process-row",
            -3.0,
            "started together",
            "what one launcher forked on one card are the ranks of a job: this one's, as a stranger's would be spread over its own cards",
            when=lambda _, e: processes.started_together(e),
        ),
        Mark(
            "other-process-first-alone",
            -3.0,
            "the first card alone",
            "other ranks of the job are processes too: what they hold on the first card is no stranger's",
            when=lambda _, e: told_ranks.first_alone(e),
        ),
        Mark(
            "other-process-before-start",
            3.0,
            "in use before the start",
            "nvidia-smi's used column counts every process, also those outside this container",
            when=_before_start,
        ),
        Mark(
            "other-process-driver", 3.5, "nothing left at the start", "cudaErrorMemoryAllocation outside the caching allocator prints no counters", when=_driver
        ),
        Mark(
            "other-process-unlisted",
            4.0,
            "in use, and no process of the job",
            "nvidia-smi counts every process, and lists none of another container or of a dead run that still holds its context",
            when=_unlisted,
        ),
        Mark(
            "other-process-left",
            3.0,
            "a run that was ended still holds the card",
            "a CUDA context lives until its process ends: an interrupted kernel or an orphaned worker keeps all that it had",
            when=lambda _, e: f"a run was ended and the card is still in use, as is written in {where}" if (where := observed.left_in_use(e)) else None,
        ),
        Mark("other-process-listed", 2.5, "two programs on one card", "nvidia-smi's list of processes, with what each holds", when=_listed),
        Mark("other-process-meant", -3.0, "meant to be there", "a share of the card that is given away on purpose is no leftover", when=_meant),
        Mark("other-process-engine", -3.0, "own engine", "a colocated engine is a process of the job", when=_explained_by_engine),
        Mark(
            "other-process-ranks",
            -4.5,
            "own ranks",
            "torchrun starts one process a rank: the same pid on two cards is a rank with two contexts",
            when=_explained_by_ranks,
        ),
        Mark(
            "other-process-shared-machine",
            2.5,
            "somebody else runs on the same machine",
            "in a container nvidia-smi names no process of another one (NVML sees this pid namespace alone)",
            pattern=(
                r"\b(?:another|other|different) (?:users?|people|persons?|students?|teams?|colleagues?)\b"
                r"[^.?!\n]{0,20}\b(?:runs?|running|train\w*|us(?:es?|ing))\b"
                r"[^.?!\n]{0,24}\b(?:same|this|the) (?:node|machine|server|gpus?|cards?|host)\b"
            ),
            when=lambda _, e: "" if counters.of(e).allocated is None else None,
        ),
        Mark(
            "other-process-zombie",
            2.5,
            "a dead run's process is spoken of",
            "a process that was stopped or orphaned keeps its CUDA context until it ends; fuser -v /dev/nvidia* lists it where nvidia-smi does not",
            pattern=r"\b(?:zombie|defunct|orphan(?:ed)?|left-?over|stale|dangling) (?:\w+ )?process|/dev/nvidia\S*.{0,60}\b(?:kill|zombie|process)",
        ),
        Mark(
            "other-process-reserve",
            2.5,
            "the share that XLA or TensorFlow takes of a card as it starts is not there",
            "xla stream_executor/cuda/cuda_driver.cc: 'failed to allocate n from device'; jax takes 75 % of a card (XLA_PYTHON_CLIENT_MEM_FRACTION)",
            pattern=r"failed to allocate \d[\d.]{0,10}\s?GiB \(\d{11,12} bytes\) from device",
            on="line",
            when=lambda _, e: None if in_phase(e, *TRAINING, "eval", "save", "resume") else "",
        ),
        Mark(
            "other-process-unbalanced",
            4.0,
            "one card of the engine has far less free than its others",
            "SGLang model_executor/model_runner.py init_torch_distributed: 'Some GPUs may be occupied by other processes', min_per_gpu_memory",
            pattern=r"memory capacity is unbalanced\. Some GPUs may be occupied by other processes",
        ),
        Mark(
            "other-process-startup-check",
            3.0,
            "the engine found less free memory at its start than it was told to use",
            "vLLM v1/worker/utils.py request_memory compares cudaMemGetInfo's free with total x gpu_memory_utilization",
            pattern=r"Free memory on device .* on startup is less than desired GPU memory utilization",
            when=lambda run, _: None if run.job.rollout is not None and run.job.rollout.placement == "colocated" else "",
        ),
    ),
    fault=_fault,
    form=_form,
    remedies=("free-other-process", "map-each-rank"),
    fires=(
        Example("most of the card is someone else's", text=oom("64.00 MiB", allocated=4.0, unallocated=0.1, free=0.05, capacity=23.65, own=4.6)),
        Example(
            "in use after the run was killed",
            text="| N/A   36C    P0    41W / 300W |  11207MiB / 16160MiB |      0%      Default |\n\n"
            "My training runs out of memory in its first batch. After I killed the last run nvidia-smi still shows this.\n",
        ),
        Example(
            "an engine beside the training script",
            text="|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:07:00.0 Off |                    0 |\n"
            "| N/A   33C    P0             61W /  400W |   39112MiB /  40960MiB |      0%      Default |\n"
            "|    0   N/A  N/A     12345      C   python train.py                              1810MiB |\n"
            "|    0   N/A  N/A     22222      C   python3 -m vllm.entrypoints.api_server      37290MiB |\n",
        ),
        Example("a small process on a full card", text=oom("128.00 MiB", allocated=0.54, unallocated=0.01, free=0.06, capacity=10.92, own=0.95)),
    ),
    quiet=(Example("the process itself fills the card", text=oom("512.00 MiB", allocated=76.5, unallocated=1.2)),),
)
