"""What a run needs beside the cards: memory of the host while it loads and offloads, and disk for its checkpoints."""

from __future__ import annotations

from msgspec import Struct

from advisor.ledger import Ledger
from advisor.run import Run

# 32 DIMM slots of a two-socket GPU server (Supermicro SYS-222H-TN, ServeTheHome) x 128 GB modules. Rented nodes of eight GPUs have half of it:
# 2,048 GiB in AWS p5en.48xlarge (torchx named_resources_aws.py) and p6-b200.48xlarge (openshift-docs, ROSA compute types).
MOST_HOST_GIB = 32 * 128
RENTED_HOST_GIB = 2048
WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2}
CHECKPOINT_WIDTH = 2  # bytes of a weight as hubs and trainers save it


class Storage(Struct, frozen=True):
    """Bytes. ``host_bytes`` of one node: what is offloaded by its ranks, or what they hold while the model is loaded, whichever is more;
    ``checkpoint_bytes``: weights and optimizer state, to go on from; ``weights_bytes``: the weights (or adapters) alone."""

    host_bytes: int
    checkpoint_bytes: int
    weights_bytes: int


def storage(run: Run, ledger: Ledger) -> Storage:
    """From the ledger of one rank. Loader workers, the Python process and pinned buffers of the data come on top of the host's figure."""
    job, p = run.job, run.job.parallel
    on_node = max(1, min(run.world, job.hardware.gpus_per_node or 1))
    divided = max(1, p.shard or 1) if (p.strategy or "none") not in ("none", "ddp", "megatron") else 1
    cut = max(1, p.tensor or 1) * max(1, p.pipeline or 1)
    state = _held(ledger, "optimizer") * divided * cut
    parameters = run.architecture.parameters if run.architecture is not None else 0
    whole = parameters * CHECKPOINT_WIDTH
    adapters = job.method.kind in ("lora", "dora")
    trained = _trained(run, ledger, divided * cut) if adapters else parameters
    weights = trained * WIDTH.get(job.method.adapter_dtype or "fp32", 4) if adapters else whole
    return Storage(max(host_of_node(ledger, on_node), whole), weights + state, weights)  # the file passes through the host once in any case


NODE_WIDE = frozenset({"processes", "copies"})  # a holding with such a value counts the node's processes already


def host_of_node(ledger: Ledger, ranks: int) -> int:
    """The largest host bytes of one moment over a node's ranks: loading counts the node's processes, what is offloaded is each rank's own."""
    sums = dict.fromkeys((m.id for m in ledger.moments), 0)
    for h in ledger.holdings:
        if h.device == "host":
            times = 1 if NODE_WIDE & h.values.keys() else ranks
            for moment in h.moments:
                sums[moment] += h.bytes * times
    return max(sums.values(), default=0)


def _held(ledger: Ledger, part: str, phases: tuple[str, ...] = ("forward",)) -> int:
    """Bytes of a part that are there throughout a phase, on the card or off it."""
    moments = [m.id for m in ledger.moments if m.phase in phases]
    return max((sum(h.bytes for h in ledger.holdings if h.part == part and m in h.moments) for m in moments), default=0)


def _trained(run: Run, ledger: Ledger, ranks: int) -> int:
    """Trained elements of the whole model, from their gradients' bytes."""
    width = WIDTH.get(run.job.precision.gradients or "fp32", 4)
    return _held(ledger, "gradients", ("backward", "step")) * ranks // width
