"""Where a run stops fitting: over batch and sequence, and over cards. Walks the boundary instead of estimating every point.

Memory never falls when a batch or a sequence grows, so for rising sequence lengths the largest fitting batch only falls: the
boundary of an m x n map is found with m + n estimates.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from advisor import cards
from advisor.arithmetic import CannotEstimate, estimate
from advisor.job import JobError
from advisor.report import Verdict
from advisor.run import Run
from advisor.verdict import judge

MICRO_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
SEQUENCES = (
    128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 20480, 24576, 32768, 49152,
    65536, 81920, 98304, 131072,
)  # fmt: skip


class OnCard(Struct, frozen=True):
    """One card of the catalogue and the verdict of the run on it, bytes that must be on it at once."""

    card: cards.Card
    verdict: Verdict
    need_bytes: int
    usable_bytes: int


def batch_map(run: Run, micro_batches: Sequence[int] = MICRO_BATCHES, sequences: Sequence[int] = SEQUENCES) -> dict[tuple[int, int], Verdict]:
    """``(micro_batch, seq_len)`` to fits, tight or ooms; empty where the run cannot be judged (card or model not known)."""
    if run.usable is None or run.missing:
        return {}
    known: dict[tuple[int, int], Verdict] = {}
    outer, inner = len(micro_batches), len(micro_batches)  # rows below these may still be tight, may still fit
    for seq in sequences:
        while outer and _at(run, micro_batches[outer - 1], seq, known) == "ooms":
            outer -= 1
        inner = min(inner, outer)
        while inner and _at(run, micro_batches[inner - 1], seq, known) != "fits":
            inner -= 1
        for index, micro in enumerate(micro_batches):
            known[micro, seq] = "fits" if index < inner else "tight" if index < outer else "ooms"
    return known


def _at(run: Run, micro: int, seq: int, known: dict[tuple[int, int], Verdict]) -> Verdict:
    found = known.get((micro, seq))
    if found is None:
        job = run.job.but(batch={"micro_batch": micro, "seq_len": seq})  # what else was resolved does not follow from these two
        found = known[micro, seq] = _judged(replace(run, job=job))[0]
    return found


def _judged(run: Run) -> tuple[Verdict, int]:
    """The verdict and the bytes that must be on the device at once, the cache left out.

    The range, which takes several estimates, is worked out only where it decides.
    """
    ledger = estimate(run)
    used = ledger.expected_totals()["device_used"].expected
    need = ledger.peak().bytes + ledger.outside("context")
    if run.usable is not None and used > run.usable[0]:
        return "ooms", need
    return judge(run, ledger)[0], need


def largest_batches(found: dict[tuple[int, int], Verdict]) -> list[tuple[int, int | None]]:
    """For each sequence length the largest micro batch that fits, ``None`` where none does."""
    best: dict[int, int | None] = {}
    for (micro, seq), verdict in found.items():
        before = best.setdefault(seq, None)
        if verdict == "fits" and (before is None or micro > before):
            best[seq] = micro
    return sorted(best.items())


def on_cards(run: Run) -> list[OnCard]:
    """The run on every card of the catalogue, smallest card first."""
    out = []
    for card in cards.catalogue().values():
        try:
            changed = run.but(hardware={"gpu": card.id})
            verdict, need = _judged(changed)
        except (JobError, CannotEstimate):
            continue
        if changed.usable is not None:
            out.append(OnCard(card, verdict, need, changed.usable[0]))
    return sorted(out, key=lambda c: (c.usable_bytes, c.card.name))
