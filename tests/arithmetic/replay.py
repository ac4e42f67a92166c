"""Training steps made of the arithmetic's own tape, tensor by tensor, and replayed through the model of the caching allocator.

For figures of the cache that no closed form gives: what is reserved where every step is alike, and where each batch has another length.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from advisor.architecture import Block
from advisor.arithmetic import layouts, logits, settings
from advisor.arithmetic.blocks import block as blocks
from advisor.arithmetic.blocks.tape import Operation, Size, Tape, Value
from advisor.arithmetic.context import Context, read
from advisor.arithmetic.fused_linear import chunk_of
from advisor.arithmetic.parameters import ADAPTED, Item
from advisor.run import Run
from advisor.simulation.allocator import Caching

Alive = dict[Value, int]


class Replay:
    """A run on an empty card: weights first, then :meth:`step` by step. ``layers`` leaves some of them out where they are all alike."""

    def __init__(self, run: Run, layers: int | None = None) -> None:
        self.ctx: Context = read(run)
        self.cache = Caching()
        self.number = 0
        tapes = [(self._tape(b), n) for b, n in self.ctx.blocks]
        self.layers = [t for t, n in tapes for _ in range(n)][:layers]
        self.loss = logits.of(self.ctx, self.ctx.job.activations.loss or "full-fp32")
        self.gradient = self.ctx.adapter if self.ctx.method in ADAPTED else self.ctx.gradient
        self.kept: list[int] = []
        self.states = False
        for unit in self.ctx.counts.units:
            for _ in range(unit.layers):
                for item in unit.items:
                    self._weights(item)
        for _ in range(2):
            self.born(8_519_680)
        self.resting = self.cache.allocated

    def _tape(self, block: Block) -> tuple[Tape, Value]:
        s = settings.of(self.ctx, block)
        tape = Tape()
        entry = tape.enter("residual stream", self.ctx.arch.hidden, s.stream, grad=s.input_grad)
        return tape, blocks.dense(tape, s, block, entry, self.ctx.arch.hidden)

    def _weights(self, item: Item) -> None:
        for _ in range(item.times):
            if item.fate == "quantised":
                self.born(layouts.packed(self.ctx.base, item.elements))
                self.born(layouts.constants(self.ctx.base, item.rows, item.columns, double_quant=True, group=128))
            elif item.fate == "adapter":
                self.born(item.elements * self.ctx.adapter // 2)
                self.born(item.elements * self.ctx.adapter // 2)
            else:
                self.born(item.elements * self.ctx.weight)

    def born(self, size: int) -> int:
        """A request; 0 for nothing."""
        if size <= 0:
            return 0
        self.number += 1
        self.cache.allocate(self.number, size)
        return self.number

    def gone(self, *numbers: int) -> None:
        """Their deaths."""
        for number in numbers:
            self.cache.free(number)

    def step(self, tokens: int, keys: int) -> None:
        """Forward, loss, backward and the optimizer's step of one batch."""
        whole = self.ctx.checkpointing != "full"
        entries: list[int] = [self.born(_bytes(_entry(self.layers[0][0]).size, tokens, keys))]
        alive: list[Alive] = []
        for tape, out in self.layers:
            ids = self._forward(tape, out, entries[-1], tokens, keys, keep=whole)
            alive.append(ids)
            entries.append(ids[out.storage])
        gradients: list[int] = []
        fused = self.ctx.job.activations.loss == "fused-linear"
        grad = self._fused(tokens, gradients) if fused else self._loss(tokens, gradients)
        for at in reversed(range(len(self.layers))):
            tape, out = self.layers[at]
            ids = alive[at] if whole else self._forward(tape, out, entries[at], tokens, keys, keep=True)
            if not whole:
                self.gone(ids.pop(out.storage))
            grad = self._backward(tape, out, ids, grad, tokens, keys, gradients)
            self.gone(entries[at + 1])
        table = self.born(sum(i.elements for i in self.ctx.counts.outer.items if i.role == "embedding" and i.fate == "trained") * self.ctx.gradient)
        if self.ctx.arch.tied:  # added to the head's gradient
            self.gone(table)
        else:
            gradients.append(table)
        self.gone(grad, entries[0])
        self._update(gradients)

    def _forward(self, tape: Tape, out: Value, entry: int, tokens: int, keys: int, *, keep: bool) -> Alive:
        last: dict[Value, int] = {out.storage: len(tape.operations)}
        for i, op in enumerate(tape.operations):
            last.update({v.storage: i for v in op.inputs if last.get(v.storage, 0) <= i})
        saved = {v.storage for op in tape.operations for v in op.saves} if keep else set()
        ids: Alive = {_entry(tape): entry}
        for i, op in enumerate(tape.operations):
            for v in {v.storage for v in op.saves if keep and v.width == 0.0}:
                ids.setdefault(v, self.born(_bytes(v.size, tokens, keys)))
            temporary = self.born(_bytes(op.forward, tokens, keys))
            if op.out.root is None:
                ids[op.out] = self.born(_bytes(op.out.size, tokens, keys))
            self.gone(temporary)
            for v in {x.storage for x in (*op.inputs, op.out)} - {_entry(tape)}:
                if v in ids and last.get(v, i) <= i and v not in saved:
                    self.gone(ids.pop(v))
        return ids

    def _fused(self, tokens: int, gradients: list[int]) -> int:
        """A fused linear loss: chunks of logits come and go, the hidden states' gradient and, where it trains, the head's stay."""
        ctx, h, vocab = self.ctx, self.ctx.arch.hidden, self.ctx.arch.vocab
        normed, head_in, hidden = (self.born(2 * tokens * h) for _ in range(3))
        if ctx.method not in ADAPTED:
            gradients.append(self.born(vocab * h * ctx.gradient))
        self.gone(self.born(chunk_of(tokens, h, vocab) * vocab * 2))
        self.gone(head_in, normed)
        out = self.born(_bytes(_entry(self.layers[-1][0]).size, tokens, 0))
        self.gone(hidden)
        return out

    def _loss(self, tokens: int, gradients: list[int]) -> int:
        """Pieces of the loss as :class:`Loss` sums them: narrow logits, then blocks of the wide size; the last stays until its backward."""
        ctx, entries, h = self.ctx, tokens * logits.vocabulary(self.ctx), self.ctx.arch.hidden
        normed, head_in = self.born(4 * tokens * h), self.born(2 * tokens * h)
        pieces = [self.born(round(size * entries)) for size in _pieces(self.loss.forward, logits.width(ctx))]
        self.gone(*pieces[:-1])
        size = round(self.loss.wide * entries)
        picked = self.born(size)
        spread = self.born(size)
        self.gone(picked, pieces[-1])
        if self.loss.wide > logits.width(ctx):
            cast = self.born(logits.width(ctx) * entries)
            self.gone(spread)
            spread = cast
        if ctx.method not in ADAPTED:
            gradients.append(self.born(logits.vocabulary(ctx) * h * ctx.gradient))
        hidden = self.born(tokens * h * 2)
        self.gone(spread, head_in, normed)
        out = self.born(_bytes(_entry(self.layers[-1][0]).size, tokens, 0))
        self.gone(hidden)
        return out

    def _backward(self, tape: Tape, out: Value, ids: Alive, grad: int, tokens: int, keys: int, gradients: list[int]) -> int:
        holders: dict[Value, int] = {}
        for op in tape.operations:
            for v in {v.storage for v in op.saves}:
                holders[v] = holders.get(v, 0) + 1
        held, users = {out: grad}, {grad: 1}

        def drop(number: int) -> None:
            users[number] -= 1
            if users[number] <= 0:
                self.gone(number)

        for op in reversed(tape.operations):
            if op.out not in held:
                continue
            temporary = self.born(_bytes(op.backward, tokens, keys))
            made = [(v, held[op.out] if op.shares else self.born(_bytes(v.size, tokens, keys))) for v in op.inputs if v.grad]
            if op.weights:
                gradients.append(self.born(round(op.weights * self.gradient)))
            self.gone(temporary)
            for v, number in made:
                users.setdefault(number, 0)
                if v not in held:
                    held[v] = number
                    users[number] += 1
                elif number != held[v]:  # added in place
                    users[number] += 1
                    drop(number)
            drop(held.pop(op.out))
            for v in _released(op, holders):
                if v in ids and v is not tape.entry:
                    self.gone(ids.pop(v))
        self.gone(*(number for v, number in ids.items() if v is not tape.entry and v is not out.storage))
        return held.get(_entry(tape), 0)

    def _update(self, gradients: list[int]) -> None:
        sizes = [self.cache.granted[g] * self.ctx.state // self.gradient for g in gradients if g]
        if not self.states:
            for size in sizes:
                self.born(size)
                self.born(size)
            self.states = True
            self.resting = self.cache.allocated - sum(self.cache.granted[g] for g in gradients if g)
        if self.ctx.job.optimizer.implementation == "foreach":
            self.gone(*[self.born(size) for size in sizes])
        self.gone(*gradients)


def _entry(tape: Tape) -> Value:
    assert tape.entry is not None
    return tape.entry


def _bytes(size: Size, tokens: int, keys: int) -> int:
    return int(size[0] * tokens + size[1] * tokens * keys + size[2] + size[3])


def _released(op: Operation, holders: dict[Value, int]) -> Iterator[Value]:
    for v in {v.storage for v in op.saves}:
        holders[v] -= 1
        if not holders[v]:
            yield v


def _pieces(whole: float, narrow: int) -> list[float]:
    out, rest = [float(narrow)], whole - narrow
    while rest > 0.5:
        out.append(min(4.0, rest))
        rest -= out[-1]
    return out


def records(longest: int, batches: int, seed: int, *, skewed: bool) -> list[int]:
    """Of so many lengths up to the longest, uniform or log-normal, those that are longer than all before: the others find their blocks in the cache."""
    rng, out = random.Random(seed), [0]
    while batches:
        length = int(longest * rng.lognormvariate(-1.6, 0.69)) + 16 if skewed else rng.randint(longest // 8, longest)
        if length <= longest:
            batches -= 1
            if length > out[-1]:
                out.append(length)
    return out[1:]
