"""Mixture of experts: the router, the experts that a token passes, and the shared ones."""

from __future__ import annotations

from advisor.architecture import Block, Experts
from advisor.arithmetic.blocks.mlp import activate, gated
from advisor.arithmetic.blocks.operations import cast, linear, tokens
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Tape, Value

INDEX = 8  # bytes of an int64 index


def moe(tape: Tape, s: Setting, block: Block, experts: Experts, x: Value, hidden: float, *, told: Value | None = None) -> Value:
    """Routed experts plus shared experts.

    A token is copied for each chosen expert (``chosen x hidden``), passes a gated MLP of the expert's width, and its result is kept for the
    product with the routing weight: ``chosen x (8 width + 4 hidden)`` bytes in 16 bit. A loop over experts (transformers 4) keeps the same
    tensors in pieces, and its temporaries are one expert's; grouped products (transformers 5) handle all pairs at once. ``told``: what
    the router reads where that is not what the experts read.
    """
    if s.all_experts and s.source == "huggingface":
        return every_expert(tape, s, block, experts, x, hidden)
    chosen = float(experts.chosen)
    scores = router(tape, s, block, experts, x if told is None else told)
    pairs = tape.run("dispatch", (x,), chosen * hidden, x.element, keeps=(("expert order", INDEX, tokens(2 * INDEX * chosen)),), label="tokens by expert")
    names = [t.name for t in block.tensors if t.role == "expert" and len(t.shape) == 2]
    local = experts.number / s.expert_ranks
    together = s.experts == "grouped"
    with tape.pieces(1.0 if together else local), tape.naming(*((pairs,) if together else ())):
        width = chosen * experts.width
        if block.gated:
            inner = gated(tape, s, pairs, names, width, copies=chosen, experts=local)
        else:
            inner = activate(tape, s, linear(tape, s, pairs, names[0], width, copies=chosen, experts=local))
        out = linear(tape, s, inner, names[-1], chosen * hidden, copies=chosen, experts=local)
        weighted = _weighted(tape, out, scores, 1.0 if together else local)
    with tape.naming(*((pairs, out) if together else ())):
        if together:
            weighted = tape.run("order of tokens", (weighted,), weighted.width, weighted.element, label="weighted expert output, tokens in order")
        y = tape.run("combine", (weighted,), hidden, weighted.element, label="experts' sum")
    y = cast(tape, y, x.element, "experts' sum")
    return beside(tape, s, block, experts, x, y, hidden)


def _weighted(tape: Tape, out: Value, scores: Value, pieces: float) -> Value:
    """Experts' output times its routing weight, in the wider dtype of the two.

    Backward: the product of gradient and output, before it is summed to the weight's gradient, beside the output's own gradient, both in that dtype
    before the latter is narrowed (torch/csrc/autograd/engine.cpp validate_outputs).
    """
    wide = max(out.element, scores.element)
    temp = tokens(out.width * (2 * wide - out.element) / pieces)
    return tape.run("routing weight", (out, scores), out.width, wide, saves=(out, scores), backward=temp, label="weighted expert output")


def every_expert(tape: Tape, s: Setting, block: Block, experts: Experts, x: Value, hidden: float) -> Value:
    """Llama 4 as transformers writes it: each token goes to all experts, multiplied by a score that is 0 for those not chosen.

    ``experts x (8 width + 6 hidden)`` bytes a token in 16 bit, however few are chosen (modeling_llama4 Llama4TextMoe, Llama4TextExperts).
    """
    local = experts.number / s.expert_ranks
    names = [t.name for t in block.tensors if t.role == "expert" and len(t.shape) == 2]
    logits = linear(tape, s, x, "router", experts.number, kind="router")
    wide = tape.run("router sigmoid", (logits,), experts.number, 4, saves_output=True, label="router probabilities")
    scores = cast(tape, wide, x.element, "routing weights")
    repeated = tape.run("repeat", (x,), local * hidden, x.element, label="tokens for every expert")
    routed = tape.run("routing weight", (repeated, scores), local * hidden, x.element, saves=(repeated, scores), label="weighted tokens of every expert")
    width = local * experts.width
    inner = gated(tape, s, routed, names, width, copies=local, experts=local)
    out = linear(tape, s, inner, names[-1], local * hidden, copies=local, experts=local)
    y = tape.run("combine", (out,), hidden, x.element, backward=NOTHING, label="experts' sum")
    return beside(tape, s, block, experts, x, y, hidden)


def beside(tape: Tape, s: Setting, block: Block, experts: Experts, x: Value, y: Value, hidden: float) -> Value:
    """The shared experts' result, added to the routed ones'."""
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
    read = cast(tape, x, 4, "router input as fp32") if s.wide_router else x
    logits = linear(tape, s, read, name, experts.number, kind="router")
    wide = cast(tape, logits, 4, "router logits as fp32")
    soft = tape.run("router softmax", (wide,), experts.number, 4, saves_output=True, label="router probabilities")
    index = ("chosen experts", INDEX, tokens(INDEX * experts.chosen))
    top = tape.run("router top-k", (soft,), experts.chosen, 4, keeps=(index,), label="routing weights")
    total = tape.run("router normalise", (top,), experts.chosen, 4, saves=(top,), saves_output=True, label="normalised routing weights")
    return total if s.wide_weights and s.experts == "grouped" else cast(tape, total, x.element, "routing weights")
