"""Seconds that ranks spend exchanging bytes, and how much of that computation hides. One rank, one micro-batch or one step.

Volumes: ZeRO (arXiv 1910.02054, section 7): stages 1 and 2 move twice the parameters a step, stage 3 three times; tensor parallelism four
all-reduces of ``[tokens, hidden]`` a layer (Megatron-LM, arXiv 1909.08053), the forward ones again under recomputation; a ring passes keys and
values ``context - 1`` times (arXiv 2310.01889); Ulysses four all-to-alls of ``[tokens, hidden]`` (arXiv 2309.14509).
"""

from __future__ import annotations

from msgspec import Struct

from advisor.cards import Card
from advisor.job import Job
from advisor.pace.efficiency import Efficiency, family, shared
from advisor.pace.products import recomputed
from advisor.pace.shape import BITS, WIDTH, Sizes

NETWORK_BYTES = {"sm80": 25e9, "sm90": 50e9, "sm100": 50e9}  # bytes a second and GPU between nodes: one 200 or 400 Gb/s adapter a GPU, an assumption
NETWORK_DEFAULT = 12.5e9  # 100 Gb/s
NETWORK_SHARE = 0.8
RACK = {"gb200": 72, "gb300": 72}  # NVL72: one NVLink domain over the nodes of a rack
PCIE_DEFAULT = 25e9  # PCIe 4.0 x16, one direction, where the card's is not known


class Exchange(Struct, frozen=True):
    """Seconds: a micro-batch's exchange in total and its exposed part, the same once a step, and whether a slow link is on the way."""

    per_pass: float
    exposed_per_pass: float
    per_step: float
    exposed_per_step: float
    slow: bool


def _rate(card: Card | None, e: Efficiency, ranks: int, per_node: int, apart: int = 1, *, neighbours: bool = False) -> tuple[float, bool]:
    """Bytes a second that each rank of a ring receives, and whether the slowest hop is PCIe or a network.

    ``apart``: every how-manieth GPU of a node belongs to the ring (tensor ranks lie between): a ring over all GPUs of a node uses all
    of the node's adapters at once, and each rank receives at their sum. ``neighbours``: each rank sends to the next only, so that the hop between
    two nodes has one adapter.
    """
    inside = (
        card.link_bytes / 2 * e.link if card is not None and card.link_bytes else ((card.bus_bytes if card is not None else None) or PCIE_DEFAULT) * e.bus / 2
    )
    pcie = card is None or not card.link_bytes
    domain = next((width for name, width in RACK.items() if card is not None and card.id.startswith(name)), per_node)
    if ranks * apart > domain:
        adapters = 1 if neighbours else max(1, per_node // apart)
        return min(inside, NETWORK_BYTES.get(family(card), NETWORK_DEFAULT) * NETWORK_SHARE * adapters), True
    return inside, pcie


def ring_rate(card: Card | None, e: Efficiency, ranks: int, per_node: int, apart: int) -> float:
    """Bytes a second that each rank of a ring receives."""
    return _rate(card, e, ranks, per_node, apart, neighbours=True)[0]


def exchange(s: Sizes, job: Job, card: Card | None, e: Efficiency, pass_seconds: float) -> Exchange:
    """``pass_seconds``: computation of one micro-batch, behind which exchanges hide."""
    p = job.parallel
    hidden = shared().hidden
    strategy, per_node = p.strategy or "none", job.hardware.gpus_per_node or 8
    shard, replicate = p.shard or 1, p.replicate or 1
    again = recomputed(job)
    held = s.parameters / (s.tensor * s.pipeline)
    trained = s.trained / (s.tensor * s.pipeline)
    overlapping = exposed = step = step_exposed = 0.0
    slow = False
    ranks = shard * replicate
    bits = BITS.get(job.method.base or "none")
    weight_bytes = held * (bits / 8 if bits is not None else 2.0)
    reduce_bytes = trained * WIDTH.get(job.precision.reduce or job.precision.gradients or "bf16", 2)
    if ranks > 1:
        rate, slow = _rate(card, e, ranks, per_node, s.tensor)
        inner, _ = _rate(card, e, shard, per_node, s.tensor)
        share = (shard - 1) / shard if shard > 1 else 0.0
        if strategy in ("fsdp1", "fsdp2", "zero3", "megatron-fsdp"):
            gathers = 2.0 if p.reshard_after_forward is not False else 1.0
            overlapping += (weight_bytes * gathers + reduce_bytes) * share / inner
            if replicate > 1:
                step += 2 * reduce_bytes / shard / rate
        elif strategy in ("zero1", "zero2", "megatron-distributed"):
            each = reduce_bytes * (shard - 1) / shard / rate if shard > 1 else 0.0
            if strategy == "zero2":
                overlapping += each
            else:
                step += each
            step_exposed += trained * 2 * share / rate  # new weights are gathered after the step
        elif strategy in ("ddp", "megatron"):
            step += 2 * reduce_bytes * (ranks - 1) / ranks / rate
    pass_exposed = max(0.0, overlapping - hidden * pass_seconds) + (1 - hidden) * min(overlapping, pass_seconds)
    backward = pass_seconds * 0.66
    step_exposed += max(0.0, step - hidden * backward) + (1 - hidden) * min(step, backward)
    exposed += pass_exposed
    if s.tensor > 1:
        rate, far = _rate(card, e, s.tensor, per_node)
        each = 2 * s.tokens * s.hidden * 2 * (s.tensor - 1) / s.tensor / rate
        exposed += each * (4 + 2 * again.dense) * s.layers / s.pipeline * (0.7 if p.async_tensor or p.sequence else 1.0)
        slow = slow or far
    context = p.context or 1
    if context > 1:
        rate, far = _rate(card, e, context, per_node, s.tensor, neighbours=p.context_kind != "ulysses")
        layers = s.layers / s.pipeline
        if p.context_kind == "ulysses":
            exposed += 4 * s.tokens * (s.query_width + s.key_width) * (3 + again.attention) / context / rate * layers / s.tensor
        else:
            ring = 2 * s.key_width * 2 * s.tokens * (context - 1) * (3 + again.attention) / rate * layers / s.tensor
            hides = hidden * pass_seconds * 0.3
            exposed += max(0.0, ring - hides) + (1 - hidden) * min(ring, hides)
        slow = slow or far
    if s.pipeline > 1:
        rate, far = _rate(card, e, s.pipeline, per_node, s.tensor * shard, neighbours=True)
        exposed += 2 * 2 * s.tokens * s.hidden / s.tensor / rate
        slow = slow or far
    if (p.expert or 1) > 1:
        groups = p.expert or 1
        apart = s.tensor if (p.expert_tensor or 1) > 1 else 1  # experts that are not cut lie on the tensor ranks as well
        rate, far = _rate(card, e, groups, per_node, apart)
        sent = s.tokens * s.hidden * 2 * s.chosen / (s.tensor if p.sequence else 1) * (groups - 1) / groups
        exposed += 4 * sent / rate / s.pipeline  # there and back, forward and backward
        slow = slow or far
    return Exchange(overlapping + exposed - pass_exposed, exposed, step, step_exposed, slow)
