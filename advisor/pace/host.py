"""What waits for the host: kernel launches, state and activations that travel over PCIe, a step on the CPU.

Host rates are assumptions about a node, stated here, and the reason for the wide range of every run that offloads.
"""

from __future__ import annotations

from msgspec import Struct

from advisor.cards import Card
from advisor.job import Job
from advisor.pace.efficiency import Efficiency, shared
from advisor.pace.links import PCIE_DEFAULT
from advisor.pace.products import recomputed
from advisor.pace.shape import ADAPTERS, WIDTH, Sizes

# Bytes a second that an Adam step on the host moves, shared by the ranks of a node: a server's two sockets sustain about a third of their stated
# 400 GB/s (8e9 parameters over 8 ranks step in 1.7 s in the stas00 rows; 15e9 a node in 3.3 s in Megatron-Bridge's pair of 4.2); a desktop has two channels.
HOST_MEMORY_BYTES = 130e9
DESKTOP_MEMORY_BYTES = 50e9
CPU_ADAM_BYTES = 28.0  # fp32 parameter, two moments read and written 24, gradient read and 16-bit copy written 4
NVME_BYTES = 6e9  # one fast drive a node
LAUNCHES_FORWARD = 60.0  # kernels of an eager decoder layer; backward about twice
LAUNCHES_ADAPTER = 35.0  # five more for each of seven adapted matrices
LAUNCHES_UNPACK = 14.0
OFFLOADED_EVERYTHING = 25.0  # elements of the width that an eager layer saves, a token: half of the 49 bytes of the reference case


class HostTime(Struct, frozen=True):
    """Seconds: launching one micro-batch's kernels; exposed PCIe time of a micro-batch; exposed time of a step on the host."""

    launching: float
    per_pass: float
    per_step: float
    offloads: bool


def host_time(s: Sizes, job: Job, card: Card | None, e: Efficiency, pass_seconds: float, divided: float) -> HostTime:
    """``divided``: ranks over which the optimizer's work is divided."""
    again = recomputed(job)
    launches = LAUNCHES_FORWARD * (3 + again.elementwise)
    if job.method.kind in ADAPTERS:
        launches += LAUNCHES_ADAPTER * (3 + again.elementwise)
        launches += LAUNCHES_UNPACK * (2 + again.dense) if job.method.base not in (None, "none") else 0.0
    if job.activations.compile:
        launches *= 0.3
    launching = launches * e.launch_seconds * s.layers / s.pipeline
    bus = ((card.bus_bytes if card is not None else None) or PCIE_DEFAULT) * e.bus
    offload = job.offload
    travel = 0.0  # all that travels over the bus in a pass shares it
    per_step = shared().step_seconds
    if offload.activations == "cpu":
        width = 2.0 * s.hidden if again.dense else 2.0 * s.hidden * OFFLOADED_EVERYTHING
        travel += 2 * width * s.tokens * s.layers / s.pipeline / bus
    ranks = max(1, min(job.hardware.gpus_per_node or 1, int(divided) if divided > 1 else job.hardware.gpus_per_node or 1))
    if offload.parameters in ("cpu", "nvme"):
        source = bus if offload.parameters == "cpu" else min(bus, NVME_BYTES / ranks)
        travel += s.parameters / divided * WIDTH.get(job.precision.compute or "bf16", 2) * 2 / source
    owned = s.trained / divided
    if offload.optimizer in ("cpu", "nvme"):
        memory = DESKTOP_MEMORY_BYTES if card is not None and card.consumer else HOST_MEMORY_BYTES
        per_step += owned * CPU_ADAM_BYTES / (memory / ranks) + owned * 2 / bus
        travel += owned * 2 * (1 if s.passes == 1 else 2) / bus  # gradients go down in every pass; where they accumulate there, the sum comes up for it
        if offload.optimizer == "nvme":
            per_step += owned * 24 / (NVME_BYTES / ranks)
    elif (job.optimizer.name or "").startswith("paged"):
        per_step += owned * 2 * (2 if "8bit" in (job.optimizer.name or "") else 8) / bus  # where the card has no room, states come and go once a step
    per_pass = max(0.0, travel - shared().hidden * pass_seconds)
    return HostTime(launching, per_pass, per_step, per_pass > 0 or per_step > shared().step_seconds)
