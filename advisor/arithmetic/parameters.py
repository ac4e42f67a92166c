"""Elements by what is done with them: quantised, frozen, trained, adapters; for each kind of block and for the outer tensors.

Counts are those of one tensor- and expert-parallel rank, before any division of state over data-parallel ranks.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.architecture import Architecture, Block, Tensor
from advisor.arithmetic.fates import ACTIVE, ADAPTED, ATTENTION_QV, Fates, experts_are_linear, unfused
from advisor.job import Job

__all__ = ["ADAPTED", "ATTENTION_QV", "Counts", "Item", "Unit", "count"]

REPLICATED = frozenset({"norm", "router", "position"})  # whole on every tensor-parallel rank
MEGATRON_VOCAB_MULTIPLE = 128  # --make-vocab-size-divisible-by, times the tensor ranks (Megatron-LM arguments.py)


class Item(Struct, frozen=True):
    """One weight tensor with its fate: elements on this rank, how many times, and how it is held."""

    name: str
    role: str
    elements: int  # of one occurrence, on this rank
    times: int
    rows: int  # first dimension on this rank, for padding to the shard ranks
    columns: int
    fate: str  # quantised | frozen | trained | adapter
    expert: bool = False
    matrix: bool = True

    @property
    def total(self) -> int:
        """Elements of all occurrences."""
        return self.elements * self.times


class Unit(Struct, frozen=True):
    """The tensors of one block (``layers`` times) or of the outside of the model (``layers`` 1)."""

    name: str
    layers: int
    items: tuple[Item, ...]
    quantised: int
    frozen: int
    trained: int
    adapters: int
    experts_trained: int  # of ``trained``: routed experts, which expert ranks divide further
    experts_frozen: int
    trained_tensors: int

    @property
    def elements(self) -> int:
        """All elements of one layer of this unit, adapters included."""
        return self.quantised + self.frozen + self.trained + self.adapters


class Counts(Struct, frozen=True):
    """Everything on this rank. ``blocks`` one a kind, then ``vision`` blocks, then ``outer``."""

    blocks: tuple[Unit, ...]
    vision: tuple[Unit, ...]
    outer: Unit
    quantised: int
    frozen: int
    trained: int
    adapters: int
    trained_tensors: int
    largest: int  # elements of the largest trained or frozen tensor
    copied: int  # elements of originals kept beside their trained copy (modules_to_save)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Every unit."""
        return (*self.blocks, *self.vision, self.outer)

    @property
    def base(self) -> int:
        """Elements without adapters."""
        return self.quantised + self.frozen + self.trained

    @property
    def learned(self) -> int:
        """Elements that get gradients and optimizer state."""
        return self.trained + self.adapters


_KNOWN: dict[tuple[Any, ...], tuple[Architecture, Counts]] = {}  # the same model and method are counted once, not for every batch size
_MOST_KNOWN = 256


def count(
    arch: Architecture, job: Job, blocks: tuple[tuple[Block, int], ...], *, tensor: int, expert: int, expert_tensor: int, embedding: bool, head: bool
) -> Counts:
    """Sort every tensor of this rank by its fate under ``job.method``."""
    layers = tuple((id(b), n) for b, n in blocks)
    vision, versions = job.model.vision, job.framework.versions or {}
    key = (
        id(arch), layers, job.method, vision.tower if vision else None, job.model.source, job.framework.name,
        versions.get("transformers"), versions.get("peft"), tensor, expert, expert_tensor, embedding, head,
    )  # fmt: skip
    known = _KNOWN.get(key)
    if known is not None and known[0] is arch:
        return known[1]
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    counts = _count(arch, job, blocks, tensor=tensor, expert=expert, expert_tensor=expert_tensor, embedding=embedding, head=head)
    _KNOWN[key] = (arch, counts)
    return counts


def _count(
    arch: Architecture, job: Job, blocks: tuple[tuple[Block, int], ...], *, tensor: int, expert: int, expert_tensor: int, embedding: bool, head: bool
) -> Counts:
    fates = Fates(arch, job)
    apart = experts_are_linear(arch, job)
    kinds = tuple(_unit(f"{b.kind} block", n, unfused(b.tensors) if apart else b.tensors, fates, tensor, expert, expert_tensor) for b, n in blocks)
    tower = job.model.vision.tower if job.model.vision else None
    vision: tuple[Unit, ...] = ()
    if arch.vision and embedding and tower != "skipped":
        vision = tuple(_unit("vision block", b.count, b.tensors, fates, tensor, 1, 1, seeing=True) for b in arch.vision)
        vision = _unread(vision, arch.vision_unused)
    outside = []
    for t in arch.outer:
        if t.role in ("embedding", "position", "vision", "projector"):
            if embedding and not (tower == "skipped" and t.role in ("vision", "projector")):
                outside.append(t)
        elif head:
            outside.append(t)
    if head and not embedding and arch.tied:  # the last pipeline stage keeps its own copy of the tied table
        outside.extend(Tensor(t.name, t.shape, "head", t.linear, t.times) for t in arch.outer if t.role == "embedding")
    outer = _unit("outer tensors", 1, tuple(outside), fates, tensor, 1, 1)
    if embedding or head:
        outer = _pad_vocabulary(outer, arch, job, tensor)
    active = ACTIVE.get(fates.kind)
    if active is not None:
        kinds, vision = _some_layers(kinds, active), tuple(_frozen(u) for u in vision)
        outer = outer if fates.kind == "lisa" else _frozen(outer)
    every = (*kinds, *vision, outer)
    return Counts(
        blocks=kinds,
        vision=vision,
        outer=outer,
        quantised=sum(u.quantised * u.layers for u in every),
        frozen=sum(u.frozen * u.layers for u in every),
        trained=sum(u.trained * u.layers for u in every),
        adapters=sum(u.adapters * u.layers for u in every),
        trained_tensors=sum(u.trained_tensors * u.layers for u in every),
        largest=max((i.elements for u in every for i in u.items), default=0),
        copied=sum(i.total for i in outer.items if i.fate == "trained") if fates.adapted else 0,
    )


def _unit(name: str, layers: int, tensors: tuple[Tensor, ...], fates: Fates, tp: int, ep: int, etp: int, *, seeing: bool = False) -> Unit:
    items: list[Item] = []
    for t in tensors:
        routed = t.role == "expert"
        parts = etp if routed else 1 if t.role in REPLICATED else tp
        times = max(1, t.times // ep) if routed and t.times > 1 else t.times
        divisor = parts * (ep if routed and t.times == 1 else 1)
        elements = -(-t.elements // divisor) if len(t.shape) > 1 else -(-t.elements // (divisor if routed or t.role in ("attention", "mlp") else 1))
        columns = t.shape[-1] if len(t.shape) > 1 else 1
        items.append(Item(t.name, t.role, elements, times, max(1, elements // max(1, columns)), columns, fates.of(t, seeing=seeing), routed, len(t.shape) > 1))
        if fates.wants(t, seeing=seeing):
            out, inside = t.shape[-2], t.shape[-1]
            # a column-parallel layer keeps A whole and splits B with its output; a row-parallel one the other way round
            rank = 2 * fates.rank if fates.experts and t.name == "gate_up_proj" else fates.rank  # two modules' ranks in one fused parameter
            size = rank * (inside + -(-out // parts)) + (-(-out // parts) if fates.dora else 0)
            items.append(Item(f"{t.name}.lora", t.role, size, times * fates.adapters, fates.rank, inside, "adapter", routed))
    by = dict.fromkeys(("quantised", "frozen", "trained", "adapter"), 0)
    for i in items:
        by[i.fate] += i.total
    return Unit(
        name, layers, tuple(items), by["quantised"], by["frozen"], by["trained"], by["adapter"],
        sum(i.total for i in items if i.expert and i.fate == "trained"),
        sum(i.total for i in items if i.expert and i.fate in ("frozen", "quantised")),
        sum(i.times * (2 if i.fate == "adapter" else 1) for i in items if i.fate in ("trained", "adapter")),
    )  # fmt: skip


def _unread(vision: tuple[Unit, ...], unused: int) -> tuple[Unit, ...]:
    """The last layers of a tower get no gradients where an earlier one's output is read: they are held, and neither stepped nor kept for."""
    if not vision or not unused:
        return vision
    last = vision[-1]
    left = max(0, last.layers - unused)
    return (*vision[:-1], *((replace(last, layers=left),) if left else ()), _frozen(replace(last, layers=last.layers - left)))


def _frozen(unit: Unit) -> Unit:
    """The same tensors without training."""
    items = tuple(replace(i, fate="frozen") if i.fate == "trained" else i for i in unit.items)
    return replace(
        unit,
        items=items,
        frozen=unit.frozen + unit.trained,
        trained=0,
        experts_trained=0,
        trained_tensors=0,
        experts_frozen=unit.experts_frozen + unit.experts_trained,
    )


def _some_layers(kinds: tuple[Unit, ...], active: int) -> tuple[Unit, ...]:
    """Only ``active`` layers train, those of the last kinds first."""
    out: list[Unit] = []
    for unit in reversed(kinds):
        trained = min(active, unit.layers)
        active -= trained
        if trained:
            out.append(replace(unit, layers=trained))
        if unit.layers > trained:
            out.append(_frozen(replace(unit, layers=unit.layers - trained)))
    return tuple(reversed(out))


def _pad_vocabulary(outer: Unit, arch: Architecture, job: Job, tensor: int) -> Unit:
    """Megatron pads the vocabulary to a multiple of 128 x tensor ranks; others hold what the config says."""
    if (job.model.source or "") != "megatron" or not arch.vocab:
        return outer
    multiple = MEGATRON_VOCAB_MULTIPLE * tensor
    padded = -(-arch.vocab // multiple) * multiple
    extra = (padded - arch.vocab) // tensor
    if not extra:
        return outer
    items = []
    grown = 0
    for i in outer.items:
        if i.role in ("embedding", "head"):
            more = extra * i.columns
            grown += more
            items.append(Item(i.name, i.role, i.elements + more, i.times, i.rows + extra, i.columns, i.fate, i.expert, i.matrix))
        else:
            items.append(i)
    trained = grown if any(i.fate == "trained" for i in outer.items) else 0
    return Unit(
        outer.name, 1, tuple(items), outer.quantised, outer.frozen + grown - trained, outer.trained + trained, outer.adapters,
        outer.experts_trained, outer.experts_frozen, outer.trained_tensors,
    )  # fmt: skip
