"""What the caching allocator keeps of a step's parts: added up once by part and moment, then by what may serve what."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from advisor.arithmetic import moments as at
from advisor.arithmetic.activations import RUNNING_BYTES, STRANDED
from advisor.ledger import OUTSIDE_ALLOCATED, Holding

# What serves no other requests: collectives allocate on streams of their own, and a block serves only its stream.
APART = frozenset({"logits", "communication"})
SHARDS = "gradient shards"  # apart too: torch/distributed/fsdp/_runtime_utils.py _post_backward_hook, _fully_shard/_fsdp_collectives.py foreach_reduce
SMALL_PIECES = frozenset({"gradients", "optimizer"})  # of adapters: a matrix of up to 1 MiB has its gradient and states in the small pool
COMING = frozenset({"activations", "attention", "dequantised"})  # the parts that a block's temporaries belong to
TURNS = (at.BACKWARD_LAST, at.BACKWARD_FIRST)  # the moments at which a block runs backward
BEFORE = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD})  # a block's temporaries are too small to serve the loss, which comes after them


class Spread(Struct, frozen=True):
    """Bytes by part and moment. ``before``: what lives before the loss's backward; ``stranded``: what a block's forward pass can not reuse of itself."""

    parts: dict[str, dict[str, int]]
    moments: dict[str, int]
    before: int
    stranded: int
    running: int  # bytes of the recomputed block that runs backward

    @property
    def peak(self) -> int:
        """The largest moment."""
        return max(self.moments.values(), default=0)

    def reserved(self, loss: int, shares: Sequence[float]) -> list[tuple[int, int]]:
        """What the cache takes where later parts reuse the logits' blocks; and where they split them for good.

        ``loss``: bytes of all the blocks of the loss (:attr:`Loss.cached`); ``shares``: of the running block's bytes, what stays reserved beyond
        them. Between the two figures decides which free block best fits what comes after the loss in the first step (gradients reuse, states born
        then split for good). Blocks of other streams and of the small pool serve nothing else either way.
        """
        if not self.moments:
            return [(0, 0) for _ in shares]
        rest, logits = self.parts.get("rest", {}), self.parts.get("logits", {})
        blocks = max(loss, *logits.values()) if logits else loss
        early, turns = self.before + self.stranded, max([rest.get(m, 0) for m in TURNS])
        reused = max([early + blocks, *[size + logits.get(m, 0) for m, size in rest.items()], *logits.values()])
        fixed = sum([max(sizes.values()) for part, sizes in self.parts.items() if part not in ("rest", "logits")])
        alone = max(early, *rest.values()) if rest else early
        owns = [turns + round(share * self.running) for share in shares]
        return [(max(reused, own) + fixed, max(alone, own) + blocks + fixed) for own in owns]

    @property
    def joined(self) -> int:
        """The largest moment of collectives' buffers and the largest of everything else, added."""
        collectives = self.parts.get("communication", {})
        return max(collectives.values(), default=0) + max((size - collectives.get(m, 0) for m, size in self.moments.items()), default=0)


def spread(held: Sequence[Holding], small: float = 0.0) -> Spread:
    """Holdings on the card, added up; ``small``: how much of gradients and states lives in the small pool."""
    groups: dict[str, dict[frozenset[str], int]] = {"rest": {}}
    stranded, running = 0, 0
    for h in held:
        part = h.part
        if h.device != "gpu" or part in OUTSIDE_ALLOCATED:
            continue
        if part in COMING and STRANDED in h.values:
            stranded, running = round(h.bytes * (h.values[STRANDED] - 1)), h.values[RUNNING_BYTES]
        size = h.bytes
        if small and part in SMALL_PIECES:
            kept = round(small * size)
            group = groups.setdefault("small", {})
            group[h.moments] = group.get(h.moments, 0) + kept
            size -= kept
        if part == "gradients" and h.layout == "sharded":  # what reduce-scatter gives: born on the stream of the collective
            part = SHARDS
        elif part not in APART:
            part = "rest"
        group = groups.setdefault(part, {})
        alive = h.moments
        group[alive] = group.get(alive, 0) + size
    moments: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    for part, group in groups.items():
        own: dict[str, int] = {}
        for alive, size in group.items():
            for moment in alive:
                own[moment] = own.get(moment, 0) + size
        if own:
            parts[part] = own
        for moment, size in own.items():
            moments[moment] = moments.get(moment, 0) + size
    before = sum(size for alive, size in groups["rest"].items() if not BEFORE.isdisjoint(alive))
    return Spread(parts, moments, before, stranded, running)
