"""A tape: one block's forward pass as a list of operations, and what autograd keeps of it.

A block is written down once as it is in the modelling code, operation by operation. Each operation says which of its inputs or outputs
its backward formula needs. From that list follow, without a device: what is saved, the largest moment of the forward pass, and for
every operation of the backward pass what is still saved, which gradients are alive and which weight gradients were born.

Sizes are per token, so that a tape is made once for a structure and serves any batch: ``tokens`` bytes a token, ``pairs`` bytes a token and
key (attention scores), ``fixed`` bytes whatever the batch (casts of weights), ``dequantised`` the same for temporaries of a quantised weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct, field

Size = tuple[float, float, float, float]  # tokens, pairs, fixed, dequantised
NOTHING: Size = (0.0, 0.0, 0.0, 0.0)


def plus(a: Size, b: Size) -> Size:
    """Sum of two sizes."""
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])


def minus(a: Size, b: Size) -> Size:
    """Difference of two sizes."""
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3])


class Value(Struct, eq=False):
    """A tensor of the forward pass. ``element`` is bytes of one element; ``width`` elements a token; ``root`` whose storage it shares."""

    name: str
    width: float
    element: int
    grad: bool
    size: Size
    root: Value | None = None
    group: str = ""  # the recomputation group that makes it
    pieces: float = 1.0  # made and freed in so many pieces (a loop over experts), so that only one lives at a time unless saved

    @property
    def moment(self) -> Size:
        """What of it lives at one moment where it is not saved, and what its gradient takes."""
        if self.pieces == 1.0:
            return self.size
        a, b, c, d = self.size
        return (a / self.pieces, b / self.pieces, c, d)

    @property
    def storage(self) -> Value:
        """The value that owns the memory."""
        return self.root or self


class Operation(Struct, eq=False):
    """One operation: inputs, output, what its backward needs, and its temporaries."""

    name: str
    inputs: tuple[Value, ...]
    out: Value
    saves: tuple[Value, ...]
    shares: bool  # input gradients are views of the output's gradient: no new memory
    forward: Size  # temporaries while it runs
    backward: Size  # temporaries while its backward runs, inputs' gradients apart
    weights: float  # elements of trained weights whose gradient is born here
    kind: str = ""  # "mm", "attention" or "scatter": what selective checkpointing may keep; "grouped" and "router" products it does not
    reuses: bool = False  # its backward writes the inputs' gradients over what it saved
    lasting: bool = False  # what it saves stays until its node is gone, not only until it has run
    named: tuple[Value, ...] = ()  # what calling code still names while it runs


class Step(Struct, frozen=True):
    """A moment of a block's backward pass: what is still saved, what lives for the moment, and how many weight-gradient elements exist."""

    operation: str
    saved: Size
    live: Size
    born: float
    kept: frozenset[int]  # indices into Counted.saved
    fresh: float = 0.0  # elements of the weight gradient that is made at this step
    label: str = ""  # the name of what lives for this moment
    met: Size = NOTHING  # gradients that are alive before it runs


class Saved(Struct, frozen=True):
    """A tensor that autograd keeps until the backward pass of its block."""

    name: str
    element: int
    size: Size
    group: str = ""
    running: str = ""  # its name while its block runs backward


class Counted(Struct, frozen=True):
    """What one block costs. ``forward`` and ``backward`` hold only steps that can be the largest for some batch."""

    saved: tuple[Saved, ...]
    total: Size
    forward: tuple[Size, ...]  # temporaries beyond ``total`` at a moment of the forward pass
    bare: tuple[Size, ...]  # what lives at a moment of a forward pass that keeps nothing (checkpointed, or without gradients)
    backward: tuple[Step, ...]
    by_policy: tuple[Saved, ...]  # what torchtitan's per-operation policy keeps beside the input
    input: Size  # the block's input: what checkpointing keeps
    output: Size
    weights: float  # trained elements of the block
    projection: Size  # the fused query-key-value output: what a cached view of it pins
    lasting: Size  # saved as attributes of custom functions: there until the graph itself is gone
    entry_saved: bool  # the block's input is among ``saved``, last
    again: tuple[Size, ...] = ()  # what lives at a moment of a block's second forward pass, which keeps everything, gradients included
    passing: tuple[tuple[int, Size], ...] = ()  # births and deaths of a forward pass that keeps nothing, for the allocator's part


class Tape(Struct):
    """The recorder that a block's description writes to."""

    operations: list[Operation] = field(default_factory=list)
    entry: Value | None = None
    split: float = 1.0
    projection: Value | None = None  # the fused query-key-value output, where there is one
    within: tuple[str, ...] = ()
    names: tuple[Value, ...] = ()
    returned: Value | None = None  # a tensor that the block returns beside its output, held by the caller

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Operations within belong to a group that selective recomputation may name (Megatron's names)."""
        before, self.within = self.within, (*self.within, name)
        yield
        self.within = before

    @contextmanager
    def pieces(self, count: float) -> Iterator[None]:
        """Operations within run once for each of ``count`` pieces, one after another."""
        before, self.split = self.split, count
        yield
        self.split = before

    @contextmanager
    def naming(self, *values: Value) -> Iterator[None]:
        """Operations within run while Python still names these values: arguments of a call that has not returned."""
        before, self.names = self.names, (*self.names, *values)
        yield
        self.names = before

    def enter(self, name: str, width: float, element: int, *, grad: bool = True) -> Value:
        """The block's input, held by the caller."""
        self.entry = Value(name, width, element, grad, (width * element, 0.0, 0.0, 0.0))
        return self.entry

    def run(
        self,
        name: str,
        inputs: Sequence[Value],
        width: float,
        element: int,
        *,
        saves: Iterable[Value] = (),
        saves_output: bool = False,
        keeps: Sequence[tuple[str, int, Size]] = (),
        shares: bool = False,
        view: bool = False,
        joins: bool = False,
        forward: Size = NOTHING,
        backward: Size = NOTHING,
        weights: float = 0.0,
        pairs: bool = False,
        reuses: bool = False,
        lasting: bool = False,
        kind: str = "",
        label: str | None = None,
    ) -> Value:
        """Record an operation and return its output.

        ``saves``: inputs its backward reads; ``saves_output``: it reads its output; ``keeps``: further small tensors it makes for its
        backward (statistics, masks); ``view``: the output is the first input's memory (``joins``: its backward makes the whole gradient);
        ``weights``: trained weight elements.
        """
        grad = bool(weights) or any(v.grad for v in inputs)
        size: Size = (0.0, width * element, 0.0, 0.0) if pairs else (width * element, 0.0, 0.0, 0.0)
        out = Value(label or name, width, element, grad, size, inputs[0].storage if view else None, " ".join(self.within), self.split)
        kept: list[Value] = []
        if grad:
            kept.extend(saves)
            kept.extend(Value(n, 0.0, e, False, s, None, " ".join(self.within)) for n, e, s in keeps)
            if saves_output:
                kept.append(out)
        self.operations.append(
            Operation(
                name,
                tuple(inputs),
                out,
                tuple(kept),
                (shares or view) and not joins,
                forward,
                backward if grad else NOTHING,
                weights,
                kind,
                reuses,
                lasting,
                self.names,
            )
        )
        return out

    def count(self, output: Value) -> Counted:
        """What the block keeps and needs, with ``output`` as what it returns."""
        from advisor.arithmetic.blocks.walk import walk

        return walk(self, output)
