"""Mixture of experts: the router, the experts that a token passes, and the shared ones."""

from __future__ import annotations

from advisor.architecture import Block, Experts
from advisor.arithmetic.blocks.mlp import activate, gated
from advisor.arithmetic.blocks.operations import cast, linear, tokens
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Tape, Value

INDEX = 8  # bytes of an int64 index


def moe(tape: Tape, s: Setting, block: Block, experts: Experts, x: Value, hidden: float) -> Value:
    """Routed experts plus shared experts.

    A token is copied for each chosen expert (``chosen x hidden``), passes a gated MLP of the expert's width, and its result is kept for the
    product with the routing weight: ``chosen x (8 width + 4 hidden)`` bytes in 16 bit. A loop over experts (transformers 4) keeps the same
    tensors in pieces, and its temporaries are one expert's; grouped products (transformers 5) handle all pairs at once.
    """
    chosen = float(experts.chosen)
    scores = router(tape, s, block, experts, x)
    pairs = tape.run("dispatch", (x,), chosen * hidden, x.element, keeps=(("expert order", INDEX, tokens(2 * INDEX * chosen)),), label="tokens by expert")
    names = [t.name for t in block.tensors if t.role == "expert" and len(t.shape) == 2]
    local = experts.number / s.expert_ranks
    with tape.pieces(local if s.experts == "loop" else 1.0):
        width = chosen * experts.width
        if block.gated:
            inner = gated(tape, s, pairs, names, width, copies=chosen, experts=local)
        else:
            inner = activate(tape, s, linear(tape, s, pairs, names[0], width, copies=chosen, experts=local))
        out = linear(tape, s, inner, names[-1], chosen * hidden, copies=chosen, experts=local)
        weighted = tape.run("routing weight", (out, scores), chosen * hidden, out.element, saves=(out, scores), label="weighted expert output")
    back = tokens(2 * chosen * hidden * x.element) if s.experts == "grouped" else NOTHING  # the sum's spread gradient, and its copy in the old order
    y = tape.run("combine", (weighted,), hidden, x.element, backward=back, label="experts' sum")
    shared = [t.name for t in block.tensors if t.role == "shared-expert" and len(t.shape) == 2 and t.name != "shared_expert_gate"]
    if experts.shared_width and shared:
        inner = (
            gated(tape, s, x, shared, experts.shared_width / s.tensor)
            if len(shared) > 2 or block.gated
            else activate(tape, s, linear(tape, s, x, shared[0], experts.shared_width))
        )
        common = linear(tape, s, inner, shared[-1], hidden)
        if any(t.name == "shared_expert_gate" for t in block.tensors):
            gate = linear(tape, s, x, "shared_expert_gate", 1)
            common = tape.run("shared gate", (gate, common), hidden, common.element, saves=(gate, common), label="gated shared output")
        y = tape.run("shared sum", (y, common), hidden, y.element, shares=True, label="MoE output")
    return y


def router(tape: Tape, s: Setting, block: Block, experts: Experts, x: Value) -> Value:
    """Scores of all experts in fp32, the chosen ones and their weights."""
    name = next((t.name for t in block.tensors if t.role == "router" and len(t.shape) == 2), "gate")
    logits = linear(tape, s, x, name, experts.number, kind="router")
    wide = cast(tape, logits, 4, "router logits as fp32")
    soft = tape.run("router softmax", (wide,), experts.number, 4, saves_output=True, label="router probabilities")
    index = ("chosen experts", INDEX, tokens(INDEX * experts.chosen))
    top = tape.run("router top-k", (soft,), experts.chosen, 4, keeps=(index,), label="routing weights")
    total = tape.run("router normalise", (top,), experts.chosen, 4, saves=(top,), saves_output=True, label="normalised routing weights")
    return cast(tape, total, x.element, "routing weights")
