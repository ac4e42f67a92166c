"""From which length a ring hides: one block of keys and values must take longer to compute with than to pass on.

With ``c`` tokens a rank a causal block costs ``c^2 (d_qk + d_v)`` operations and sends ``c`` tokens of keys and values in 16 bits, so that
``c >= 4 d_kv F / (B (d_qk + d_v))`` for a rate ``F`` and a link ``B`` (condition of arXiv 2310.01889, section 3, with grouped heads).
"""

from __future__ import annotations

from msgspec import Struct

from advisor.pace.efficiency import efficiency
from advisor.pace.links import ring_rate
from advisor.pace.shape import sizes
from advisor.run import Run


class Ring(Struct, frozen=True):
    """Tokens that a rank has, tokens from which the exchange hides, and the share of attention's time that it stalls below them."""

    tokens: int
    hides_from: int
    stall: float


def ring(run: Run) -> Ring | None:
    """The ring of a run with context parallelism; ``None`` without one, or where card or model are not known."""
    job = run.effective
    s = sizes(run, job)
    context = job.parallel.context or 1
    card = run.card
    rate = (card.flops.get("bf16") or card.flops.get("fp16")) if card is not None else None
    if s is None or context == 1 or job.parallel.context_kind == "ulysses" or rate is None:
        return None
    e = efficiency(card)
    link = ring_rate(card, e, context, job.hardware.gpus_per_node or 8, s.tensor)
    attends = rate * (e.attention_old if job.activations.attention == "flash-2" else e.attention)
    hides_from = 4 * s.key_width * attends / (link * (s.query_width + s.value_width))
    tokens = s.seq_len / context
    return Ring(round(tokens), round(hides_from), max(0.0, hides_from / max(tokens, 1.0) - 1))
