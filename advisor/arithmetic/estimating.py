"""All parts put together: one ledger for a run, the largest stage's where the run has several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from advisor.architecture.presets import unknown
from advisor.arithmetic import (
    activations,
    attention_scores,
    communication,
    decode_cache,
    dequantised,
    deviating,
    evaluation,
    gradients,
    load,
    log_probs,
    logits,
    models,
    optimizer,
    rollout,
    saving,
    weights,
    workspace,
)
from advisor.arithmetic import moments as at
from advisor.arithmetic.context import CannotEstimate, Context, read
from advisor.arithmetic.fates import ACTIVE
from advisor.arithmetic.highest import Highest
from advisor.arithmetic.interval import scan_packages, widths
from advisor.arithmetic.outside import outside
from advisor.arithmetic.pipeline import waiting
from advisor.arithmetic.stages import stages
from advisor.arithmetic.states import PAGED
from advisor.job import Job
from advisor.ledger import Holding, Interval, Ledger, Moment
from advisor.run import Run, resolve

PARTS: tuple[Callable[[Context], Iterable[Holding]], ...] = (
    weights.holdings, gradients.holdings, optimizer.holdings, communication.holdings, activations.holdings, attention_scores.holdings, logits.holdings,
    dequantised.holdings, decode_cache.holdings, workspace.holdings, load.holdings, evaluation.holdings, saving.holdings, models.holdings, log_probs.holdings,
)  # fmt: skip
# need what is held; the last is what torch does not count as allocated
AFTER: tuple[Callable[[Context, Sequence[Holding]], Iterable[Holding]], ...] = (waiting, rollout.holdings, deviating.holdings, outside)


def estimate(job_or_run: Job | Run) -> Ledger:
    """Who holds how many bytes on the rank that is meant (``parallel.pipeline_rank``), for every phase the job has.

    Raises:
        CannotEstimate: the model's shape, the micro batch or the sequence length is not known.
    """
    run = job_or_run if isinstance(job_or_run, Run) else resolve(job_or_run)
    undecided = [f for f in run.missing if f.startswith("model")]
    if undecided and run.architecture is None:
        raise CannotEstimate(undecided[0], unknown(run.job.model.name))
    return _largest_stage(run, widths(run, _largest_stage), Highest(run, _allocated))


def _largest_stage(run: Run, ranges: Callable[[Ledger], dict[str, Interval]] | None = None, highest: Highest | None = None) -> Ledger:
    return _largest([_of_stage(read(run, stage), ranges, highest) for stage in stages(run.effective)])


def _allocated(run: Run) -> Ledger:
    """What torch allocates, and nothing else of the ledger: much of the work is in what lies outside."""
    return _largest([Ledger("estimated", tuple(_held(ctx, AFTER[:-1])), _moments(ctx)) for ctx in (read(run, stage) for stage in stages(run.effective))])


def _largest(found: list[Ledger]) -> Ledger:
    return max(found, key=lambda ledger: ledger.peak().bytes) if len(found) > 1 else found[0]


def _of_stage(ctx: Context, ranges: Callable[[Ledger], dict[str, Interval]] | None, highest: Highest | None) -> Ledger:
    held = tuple(_held(ctx, AFTER))
    rank = str(ctx.job.parallel.pipeline_rank or "max") if ctx.pipeline > 1 else "max"
    software = ctx.job.framework.versions or {}
    return Ledger("estimated", held, _moments(ctx), rank=rank, software=software, notes=tuple(_notes(ctx)), widths=ranges, highest=highest)


def _held(ctx: Context, after: Sequence[Callable[[Context, Sequence[Holding]], Iterable[Holding]]]) -> list[Holding]:
    held: list[Holding] = []
    for part in PARTS:
        held.extend([h for h in part(ctx) if h.bytes > 0 and h.moments])
    for later in after:
        held.extend([h for h in later(ctx, held) if h.bytes > 0 and h.moments])
    return held


def _moments(ctx: Context) -> tuple[Moment, ...]:
    return tuple(m for name, m in at.MOMENTS.items() if name in ctx.moments)


def _notes(ctx: Context) -> list[str]:
    """What the figures leave out, in words."""
    notes = []
    rollout_ = ctx.job.rollout
    if rollout_ is not None and rollout_.placement != "separate" and rollout_.engine != "hf" and ctx.run.usable is None:
        notes.append("The engine's cache is a share of the card, which is not known, so it is not counted: give hardware.gpu.")
    if ctx.arch.unread:
        notes.append(f"Keys of the model's config that were not understood: {', '.join(ctx.arch.unread)}.")
    packages = sorted(scan_packages(ctx.arch)) if ctx.source == "huggingface" else []
    if packages and not any(ctx.version(name) for name in packages):
        notes.append(f"{' or '.join(packages)} is taken to be installed: without its fused scan transformers' own code keeps many times more (the high end).")
    if ctx.arch.guessed:
        notes.append("This family has no reader: the range is as wide as other families' that were read by the look of their keys turned out to be.")
    if ctx.arch.undescribed:
        notes.append(f"Not counted: {ctx.arch.undescribed}. The range is as wide as those of families without a reader turned out to be.")
    if ctx.optimizer in PAGED:
        notes.append("Paged optimizer states are managed memory: the driver keeps them on the card while there is room, but torch does not count them.")
    if ctx.method in ACTIVE:
        notes.append(f"{ctx.method} is counted with {ACTIVE[ctx.method]} layers training at a time.")
    return notes
