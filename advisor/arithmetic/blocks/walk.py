"""The walk over a tape: forward with the lifetimes of Python variables, backward with those of gradients."""

from __future__ import annotations

from advisor.arithmetic.blocks.tape import NOTHING, Counted, Operation, Saved, Size, Step, Tape, Value, minus, plus


def walk(tape: Tape, output: Value) -> Counted:
    """What autograd keeps of a block and the moments that can be its largest.

    Rules of the engine that decide (torch/csrc/autograd): backward nodes run in reverse order of creation; a saved tensor is released
    when its node has run; a second gradient for the same value is added in place where nobody else holds the first.
    """
    entry = tape.entry
    if entry is None:
        raise ValueError("the tape has no input: call Tape.enter first")
    holders: dict[Value, int] = {}
    for op in tape.operations:
        for value in dict.fromkeys(v.storage for v in op.saves):  # in order, so that a ledger reads the same every time
            holders[value] = holders.get(value, 0) + 1
    if tape.returned is not None:  # one holder more, who never lets go
        holders[tape.returned.storage] = holders.get(tape.returned.storage, 0) + 1
    order = [v for v in holders if v.size != NOTHING and v is not entry]
    saved = tuple(Saved(v.name, v.element, v.size, v.group, f"{v.name} (block in backward)") for v in order)
    total = NOTHING
    for v in order:
        total = plus(total, v.size)
    entry_saved = entry in holders
    forward = _forward(tape.operations, entry, output, frozenset(holders), total)
    backward = _backward(tape.operations, output, holders, {v: i for i, v in enumerate(order)}, total)
    if entry_saved:
        saved = (*saved, Saved(entry.name, entry.element, entry.size))
    return Counted(
        saved=saved,
        total=plus(total, entry.size) if entry_saved else total,
        forward=_largest(forward),
        again=_again(tape.operations, forward, total, backward),
        bare=_largest(_forward(tape.operations, entry, output, frozenset(), NOTHING, keeping=False)),
        backward=_largest_steps(backward),
        by_policy=_by_policy(tape.operations),
        input=entry.size,
        output=output.size,
        weights=sum(op.weights for op in tape.operations),
        projection=tape.projection.storage.size if tape.projection is not None else NOTHING,
        lasting=_lasting(tape.operations),
        entry_saved=entry_saved,
        passing=_coming_and_going(tape.operations, entry, output),
    )


def _again(operations: list[Operation], forward: list[Size], total: Size, backward: list[Step]) -> tuple[Size, ...]:
    """Moments of the forward pass that a checkpointed block runs a second time, beside the gradients that are there when it begins.

    It begins when backward comes to the first operation that needs something saved, and stops before the last one that saves
    (torch/utils/checkpoint.py ``_StopRecomputationError``); a reentrant one goes on, to less than backward begins with.
    """
    last = max((i for i, op in enumerate(operations) if op.saves), default=0)
    met = next((step.met for step in backward if step.operation == operations[last].name), NOTHING) if operations else NOTHING
    return _largest([plus(plus(total, size), met) for size in forward[:last]])


def _by_policy(operations: list[Operation]) -> tuple[Saved, ...]:
    """Every second matrix product (the first, third, ...), attention with its statistics, and what a reduce-scatter gives.

    Experts' grouped products are not on the list, and the router's is made again by name, uncounted (torchtitan activation_checkpoint.py,
    _op_sac_save_list and moe.router.gate in force_recompute_mm_shapes_by_fqns; torch's list of compute-intensive operations).
    """
    out, products = [], 0
    for op in operations:
        if op.kind == "mm":
            products += 1
            if products % 2 == 0:
                continue
        elif op.kind not in ("attention", "scatter"):
            continue
        out.append(Saved(op.out.name, op.out.element, op.out.size))
        out.extend(Saved(v.name, v.element, v.size) for v in op.saves if v.width == 0.0)
    return tuple(out)


def _lasting(operations: list[Operation]) -> Size:
    total = NOTHING
    for v in {x.storage for op in operations if op.lasting for x in op.saves}:
        total = plus(total, v.size)
    return total


def _coming_and_going(operations: list[Operation], entry: Value, output: Value) -> tuple[tuple[int, Size], ...]:
    """Births (number and size) and deaths (number and nothing) of a forward pass that keeps nothing."""
    last: dict[Value, int] = {output.storage: len(operations)}
    for i, op in enumerate(operations):
        for v in (*op.inputs, *op.named):
            last[v.storage] = max(last.get(v.storage, 0), i)
    events: list[tuple[int, Size]] = []
    ids: dict[Value, int] = {}
    for i, op in enumerate(operations):
        if op.out.root is None:
            ids[op.out] = i + 1
            events.append((i + 1, op.out.moment))
        if op.forward != NOTHING:
            events += [(-1 - i, op.forward), (-1 - i, NOTHING)]
        for v in {x.storage for x in (*op.inputs, *op.named, op.out)}:
            if v is not entry and v in ids and last.get(v, i) <= i:
                events.append((ids.pop(v), NOTHING))
    return tuple(events)


def _forward(operations: list[Operation], entry: Value, output: Value, holders: frozenset[Value], total: Size, *, keeping: bool = True) -> list[Size]:
    last: dict[Value, int] = {output.storage: len(operations)}
    for i, op in enumerate(operations):
        for v in (*op.inputs, *op.named):
            last[v.storage] = max(last.get(v.storage, 0), i)
    alive, moments = NOTHING, []
    for i, op in enumerate(operations):
        for v in op.saves:  # statistics and masks that the operation itself makes
            if keeping and v.storage is v and v.width == 0.0:
                alive = plus(alive, v.size)
        if op.out.root is None:
            alive = plus(alive, op.out.size if op.out in holders else op.out.moment)
        moments.append(minus(plus(alive, op.forward), total))
        for v in {x.storage for x in (*op.inputs, *op.named, op.out)}:
            if v is not entry and last.get(v, i) <= i and v not in holders:
                alive = minus(alive, v.moment)
                last[v] = len(operations) + 1  # freed once
    return moments


class _Gradients:
    """Gradient buffers with their holders, so that a shared one is counted once and freed with its last holder."""

    def __init__(self) -> None:
        self.of: dict[Value, list[float]] = {}  # value -> [buffer id]
        self.size: dict[int, Size] = {}
        self.refs: dict[int, int] = {}
        self.buffer: dict[Value, int] = {}
        self.alive: Size = NOTHING
        self._next = 0

    def make(self, size: Size) -> int:
        self._next += 1
        self.size[self._next], self.refs[self._next] = size, 0
        self.alive = plus(self.alive, size)
        return self._next

    def give(self, value: Value, buffer: int) -> None:
        held = self.buffer.get(value)
        self.refs[buffer] += 1
        if held is None:
            self.buffer[value] = buffer
        elif self.refs[held] == 1 and self.size[held] >= self.size[buffer]:  # added in place: the newcomer goes
            self.drop(buffer)
        else:  # a sum in new memory would be needed; the newcomer's own memory takes it
            self.drop(held)
            self.buffer[value] = buffer

    def drop(self, buffer: int) -> None:
        self.refs[buffer] -= 1
        if self.refs[buffer] <= 0:
            self.alive = minus(self.alive, self.size[buffer])

    def release(self, value: Value) -> None:
        buffer = self.buffer.pop(value, None)
        if buffer is not None:
            self.drop(buffer)


def _backward(operations: list[Operation], output: Value, holders: dict[Value, int], index: dict[Value, int], total: Size) -> list[Step]:
    grads = _Gradients()
    grads.give(output, grads.make(output.moment))
    holders, saved, born = dict(holders), total, 0.0
    kept = set(index.values())
    steps: list[Step] = []
    for op in reversed(operations):
        if op.out not in grads.buffer:
            continue
        mine, met = grads.buffer[op.out], grads.alive
        made: list[tuple[Value, int]] = []
        if op.reuses:
            steps.append(
                Step(
                    op.name,
                    saved,
                    plus(grads.alive, op.backward),
                    born + op.weights,
                    frozenset(kept),
                    op.weights,
                    f"gradients and temporaries of a block's backward, at {op.name}",
                    met,
                )
            )
        for v in op.inputs:
            if v.grad:
                made.append((v, mine if op.shares else grads.make(v.moment)))
        if not op.reuses:
            steps.append(
                Step(
                    op.name,
                    saved,
                    plus(grads.alive, op.backward),
                    born + op.weights,
                    frozenset(kept),
                    op.weights,
                    f"gradients and temporaries of a block's backward, at {op.name}",
                    met,
                )
            )
        born += op.weights
        for v, buffer in made:
            grads.give(v, buffer)
        grads.release(op.out)
        for v in {x.storage for x in op.saves}:
            holders[v] -= 1
            if not holders[v] and v in index:
                saved = minus(saved, v.size)
                kept.discard(index[v])
    return steps


def _largest(sizes: list[Size]) -> tuple[Size, ...]:
    distinct = sorted(set(sizes), reverse=True)
    kept: list[Size] = []
    for a in distinct:  # descending: what can be at least as large in every figure has been seen
        if not any(b[0] >= a[0] and b[1] >= a[1] and b[2] >= a[2] and b[3] >= a[3] for b in kept):
            kept.append(a)
    return tuple(kept)


def _largest_steps(steps: list[Step]) -> tuple[Step, ...]:
    """The steps that no other beats in every figure, in the order in which they run; of equal ones the first."""
    points = [(*plus(s.saved, s.live), s.born) for s in steps]
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i], -i), reverse=True):
        p, q, r, t, u = points[i]
        for j in kept:
            b = points[j]
            if b[0] >= p and b[1] >= q and b[2] >= r and b[3] >= t and b[4] >= u:
                break
        else:
            kept.append(i)
    return tuple(steps[i] for i in sorted(kept))
