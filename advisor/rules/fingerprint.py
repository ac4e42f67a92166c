"""The size of the failed request, matched against every tensor that the run can produce.

A printed request is the tensor rounded up by the allocator (512 bytes below 1 MiB, a 20 MiB segment below 10 MiB, multiples of
2 MiB above: c10 ``AllocatorConfig.h``) and then to two decimals. A tensor matches when its rounded size lies within half of the
last printed digit. Where micro batch or sequence length are not known, token counts are solved for and judged by how surprising it
is that a whole, usual number comes out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from msgspec import Struct

from advisor.architecture import Architecture
from advisor.evidence import Evidence, Fact
from advisor.reading.pattern import pattern
from advisor.rules import counters
from advisor.rules.shares import guessed
from advisor.rules.tensors import SEGMENT_FROM, WIDTHS, Candidate, candidates, rounded
from advisor.run import Run
from advisor.units import MIB, show

_LENGTH = pattern(r"(?<![\d.])\d{4,7}(?![\d.])(?!\s?(?:[KMG]i?B|[KMG]\b|/))")


class Match(Struct, frozen=True):
    """A candidate whose size is the request. ``others``: kinds that match as well. ``solved``: tokens found, where they were not known."""

    candidate: Candidate
    others: frozenset[str] = frozenset()
    solved_tokens: int | None = None

    def says(self, requested: int) -> str:
        """The sentence for a mark."""
        solved = f", for {self.solved_tokens:,} tokens" if self.solved_tokens else ""
        return f"the failed request of {show(requested)} is {self.candidate.formula}{solved}: {self.candidate.name}"


def matches(run: Run, evidence: Evidence) -> tuple[Match, ...]:
    """The tensors that the failed request can be, best first; empty where it is a segment or not printed. Found once a run."""
    key = ("fingerprint", id(evidence))
    if key not in run._cache:  # type: ignore[comparison-overlap]
        run._cache[key] = _matches(run, evidence)  # type: ignore[index]
    found: tuple[Match, ...] = run._cache[key]  # type: ignore[index]
    return found


def _matches(run: Run, evidence: Evidence) -> tuple[Match, ...]:
    failure, shape = evidence.failure, run.architecture
    requested = counters.of(evidence).requested
    if failure is None or requested is None or requested < SEGMENT_FROM or requested in counters.SEGMENTS:
        return ()
    tolerance = failure.tolerance("requested") + MIB // 64
    found = [c for c in candidates(run, shape, evaluating=failure.phase == "eval") if abs(rounded(c.size_bytes) - requested) <= tolerance]
    found = [c for c in found if _possible(c.kind, evidence)] or found
    kinds = frozenset(c.kind for c in found)
    direct = [Match(c, kinds - {c.kind}) for c in sorted(found, key=lambda c: abs(rounded(c.size_bytes) - requested))]
    if direct or shape is None or not (guessed(run, "batch.micro_batch") or guessed(run, "batch.seq_len") or run.job.batch.packed is False):
        return tuple(direct)
    return tuple(_solved(run, shape, requested, tolerance)) or tuple(_of_blocks(run, shape, requested, tolerance))


_ATTENTION_CODE = pattern(r"attention|sdpa|attn|create_(block_)?mask", re.IGNORECASE)
_WIDE_CODE = pattern(r"\.float\(\)|float32|log_softmax|cross_entropy|logsumexp")  # computed in fp32: autocast's list, transformers' loss
_LOGITS_CODE = pattern(r"logits|lm_head|cross_entropy|log_softmax|logps|entropy", re.IGNORECASE)


def _possible(kind: str, evidence: Evidence) -> bool:
    """Whether the innermost frame leaves room for this kind: attention code makes no logits, the loss makes no scores."""
    failure = evidence.failure
    if failure is None or not failure.frames:
        return True
    inner = failure.frames[-1]
    text = f"{inner.file}:{inner.function}: {inner.code}"
    if _ATTENTION_CODE.search(text):
        return kind != "logits"
    return not (_LOGITS_CODE.search(text) and kind in ("attention", "mask"))


def match(run: Run, evidence: Evidence, *kinds: str, alone: bool = False, dtype: str | None = None) -> str | None:
    """The sentence where the request is a tensor of one of these kinds; else ``None``.

    ``alone``: and of no other kind. ``dtype``: and of no other dtype.
    """
    requested = counters.of(evidence).requested
    every = matches(run, evidence)
    if dtype is not None and any(not m.candidate.name.endswith(f" in {dtype}") for m in every):
        return None
    for found in every:
        if found.candidate.kind in kinds and not (alone and found.others - set(kinds)):
            return found.says(requested or 0)
    return None


def _solved(run: Run, shape: Architecture, requested: int, tolerance: int) -> Iterator[Match]:
    """Token counts for which the request would be logits: told only where a round number comes out that chance would rarely give."""
    batch, length = run.job.batch.micro_batch, run.job.batch.seq_len
    most = None if batch is None or length is None or guessed(run, "batch.micro_batch") or guessed(run, "batch.seq_len") else batch * length
    for dtype, width in WIDTHS:
        row = shape.vocab * width
        low, high = math.ceil((requested - tolerance - 2 * MIB) / row), math.floor((requested + tolerance) / row)
        if low < 64 or high < low or (most is not None and low > most):
            continue
        for step in (1024, 512, 256, 128, 64):
            unit = step * (batch or 1)
            tokens = high // unit * unit
            if tokens >= low and (high - low + 1) / unit < 0.25 and abs(rounded(tokens * row) - requested) <= tolerance:
                candidate = Candidate("logits", f"logits in {dtype}", tokens * row, f"tokens {tokens:,} x vocab {shape.vocab:,} x {width}")
                yield Match(candidate, solved_tokens=tokens)
                break


def _of_blocks(run: Run, shape: Architecture, requested: int, tolerance: int) -> Iterator[Match]:
    """Token counts for which the request would be what a block's MLP makes: told only where they are thousands, which chance gives one time in ten at most."""
    tensor = run.job.parallel.tensor or 1
    for side in sorted({block.mlp_width // tensor for block in shape.blocks if block.mlp_width}):
        for dtype, width in WIDTHS:
            row = side * width
            low, high = math.ceil((requested - tolerance - 2 * MIB) / row), math.floor((requested + tolerance) / row)
            tokens = high // 1024 * 1024
            if low <= tokens and low >= 64 and (high - low + 1) / 1024 <= 0.1 and abs(rounded(tokens * row) - requested) <= tolerance:
                formula = f"{tokens:,} tokens x MLP width {side:,} x {width}"
                yield Match(Candidate("mlp", f"an MLP projection's output in {dtype}", tokens * row, formula), solved_tokens=tokens)


def square(evidence: Evidence) -> str | None:
    """A length that stands in the shown code or frames whose square, at 1, 2 or 4 bytes, is the request."""
    failure, requested = evidence.failure, counters.of(evidence).requested
    if failure is None or requested is None or requested < 256 * MIB:
        return None
    tolerance = failure.tolerance("requested") + MIB // 64
    texts = [(f.where, f.code) for f in evidence.frames] + [(line.where, line.text) for line in evidence.lines]
    for where, text in texts:
        for length in {int(n) for n in _LENGTH.findall(text)}:
            for width in (1, 2, 4):
                if abs(rounded(length * length * width) - requested) <= tolerance:
                    return f"the failed request of {show(requested)} is {length:,}² x {width}, a square of the length in {where}"
    return None


def rows(run: Run, evidence: Evidence) -> str | None:
    """Whether the request is micro_batch x seq_len rows of a usual width (a multiple of 256 elements), for a model that is not known."""
    failure, requested = evidence.failure, counters.of(evidence).requested
    batch, length = run.job.batch.micro_batch, run.job.batch.seq_len
    if failure is None or requested is None or batch is None or length is None or run.architecture is not None or requested < SEGMENT_FROM:
        return None
    tolerance = failure.tolerance("requested") + MIB // 64
    for width in (4, 2):
        row = batch * length * width
        elements = round(requested / row / 256) * 256
        if 512 <= elements <= 65_536 and abs(rounded(elements * row) - requested) <= tolerance and 256 * row > 4 * tolerance:
            return f"the failed request of {show(requested)} is {batch:,} x {length:,} tokens x {elements:,} x {width}"
    return None


def implied_length(run: Run, evidence: Evidence) -> Fact | None:
    """The sequence length for which the failed request is logits, where none was read: told only where the failing frame makes logits."""
    batch, requested, failure = run.job.batch.micro_batch, counters.of(evidence).requested, evidence.failure
    if batch is None or requested is None or failure is None or not failure.frames or not guessed(run, "batch.seq_len") or guessed(run, "batch.micro_batch"):
        return None
    inner = failure.frames[-1]
    if not _LOGITS_CODE.search(f"{inner.file}:{inner.function}: {inner.code}"):
        return None
    wide = _WIDE_CODE.search(inner.code) is not None
    for found in matches(run, evidence):
        dtype = "fp32" if wide or run.job.precision.compute == "fp32" else "bf16"
        named = found.candidate.kind == "logits" and found.candidate.name.endswith(dtype)
        if named and found.solved_tokens and found.solved_tokens % batch == 0:
            why = f"the failed request of {show(requested)} is {found.candidate.formula}, in a frame that makes logits"
            return Fact("batch.seq_len", found.solved_tokens // batch, "inferred", where=failure.where, why=why)
    return None


_UNFUSED_CODE = pattern(r"logits\s*=\s*logits\.float\(\)|ForCausalLMLoss")


def shown_loss(run: Run, evidence: Evidence) -> Fact | None:
    """``full-fp32`` where the default of a version that was not read says otherwise and the failing frame is transformers' loss widening whole logits.

    The frame alone is enough only with the request: a tensor of logits (transformers loss/loss_utils.py ForCausalLMLoss upcasts them).
    """
    fact, failure = run.facts.get("activations.loss"), evidence.failure
    if run.job.activations.loss not in ("chunked", "fused-linear") or fact is None or fact.kind != "default" or failure is None or not failure.frames:
        return None
    if {"trl", "transformers", "torchtune", "litgpt"} & set(run.job.framework.versions or {}):
        return None  # the default is this version's own: that it does not hold is a fault (loss-fallback)
    inner = failure.frames[-1]
    found = match(run, evidence, "logits")
    if found is None or not _UNFUSED_CODE.search(f"{inner.function}: {inner.code}"):
        return None
    return Fact("activations.loss", "full-fp32", "inferred", where=failure.where, why=f"{found}, in a frame that widens whole logits")
