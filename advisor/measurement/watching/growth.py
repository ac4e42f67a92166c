"""What grows from step to step, and what of the last step is still alive when the next begins, by the name that holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch

from advisor.measurement.watching.finding import Finding, Level
from advisor.measurement.watching.holders import NOBODY, Holder
from advisor.units import show

SCANS = 3  # a group that grew at each of so many boundaries grows
MAX_NODES = 20_000
LARGE_SHARE = 0.05  # of the peak, from which an output that outlives its step is worth a warning


@dataclass(slots=True)
class Group:
    """What one name holds at a boundary: tensors, bytes, tensors with a graph, nodes of their graphs, bytes made in the step that has ended."""

    tensors: int = 0
    bytes: int = 0
    with_graph: int = 0
    nodes: int = 0
    fresh: int = 0


Scan = dict[Holder, Group]


def scan(strangers: list[torch.Tensor], held: Mapping[int, Holder], fresh: Mapping[int, int]) -> Scan:
    """The groups of one boundary. ``fresh``: bytes by storage of what was born in the step before it."""
    groups: Scan = {}
    seen_storages: set[int] = set()
    seen_nodes: dict[Holder, set[object]] = {}  # apart: of what two names share, each has all, whichever is met first
    for tensor in strangers:
        holder = held.get(id(tensor), NOBODY)
        group = groups.setdefault(holder, Group())
        group.tensors += 1
        key = tensor.untyped_storage()._cdata
        if key not in seen_storages:
            seen_storages.add(key)
            group.bytes += tensor.untyped_storage().nbytes()
            group.fresh += fresh.get(key, 0)
        if tensor.grad_fn is not None:
            group.with_graph += 1
            group.nodes += _nodes(tensor.grad_fn, seen_nodes.setdefault(holder, set()))
    return groups


def _nodes(start: object, seen: set[object]) -> int:
    stack, before = [start], len(seen)
    while stack and len(seen) < MAX_NODES:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(following for following, _ in getattr(node, "next_functions", ()))
    return len(seen) - before


def find(scans: list[Scan], leftover: int, peak: int, least: int, step: int) -> list[Finding]:
    """Findings of the last :data:`SCANS` boundaries. ``leftover``: bytes of the last step that nothing owned still keeps alive."""
    if len(scans) < 2:
        return []
    found: list[Finding] = []
    for holder in scans[-1]:
        if holder == NOBODY:
            continue
        last = [s.get(holder, Group()) for s in scans[-SCANS:]]
        if len(last) == SCANS and _grows([g.nodes for g in last]) and last[-1].with_graph:
            size = max(leftover, last[-1].bytes - last[-2].bytes)
            held = f"{last[-1].with_graph} tensors with {last[-1].nodes} nodes, more each step"
            says = f"{holder.name} ({holder.kind}) keeps the autograd graph of earlier steps: {held}"
            found.append(Finding("retained-graph", says, holder.where, size, part="activations", name=holder.name, step=step))
        elif len(last) == SCANS and _grows([g.bytes for g in last]) and last[-1].bytes - last[-2].bytes >= least:
            grew = last[-1].bytes - last[-2].bytes
            says = f"{holder.name} ({holder.kind}) grows by {show(grew)} a step ({last[-1].tensors} tensors)"
            found.append(Finding("retained-objects", says, holder.where, grew, part="activations", name=holder.name, step=step))
        elif len(last) == SCANS and all(g.fresh >= least for g in last[1:]):
            level: Level = "warning" if last[-1].fresh >= LARGE_SHARE * peak else "note"
            says = f"{holder.name} ({holder.kind}) of the step before is still alive when the next forward pass begins ({show(last[-1].fresh)})"
            found.append(Finding("retained-objects", says, holder.where, last[-1].fresh, part="activations", name=holder.name, step=step, level=level))
    return found


def _grows(values: list[int]) -> bool:
    return all(b > a for a, b in pairwise(values))
