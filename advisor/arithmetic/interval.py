"""How sure a total is: what is assumed, varied over its plausible values, and the estimator's own measured error for that kind of run.

The table ``knowledge/errors.yaml`` holds, for each total and kind of run, the range of measured over estimated among public measurements,
each source left out in turn (:mod:`advisor.accuracy.error_table` makes it). Both are worked out only when a total's range is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import hypot
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor import knowledge
from advisor.architecture import Architecture
from advisor.arithmetic.blocks.scans import PYTHON
from advisor.arithmetic.context import CannotEstimate
from advisor.arithmetic.fates import version_open
from advisor.arithmetic.logits import IN_GRAPH
from advisor.arithmetic.outside import AT_LEAST, AT_MOST
from advisor.evidence import Fact
from advisor.job.checking import validated
from advisor.job.division import Wrap
from advisor.ledger import OUTSIDE_ALLOCATED, Interval, Ledger
from advisor.run import Run

PACKAGE = {"huggingface": "transformers", "remote-code": "transformers"}
# Versions on the two sides of what changes most: the loss's copies (transformers 4.46, 4.49; losses.py), inputs kept by 4-bit layers (settings.keeps_input)
DECIDING = {"transformers": ("4.44.2", "4.48.1"), "bitsandbytes": ("0.43.3",)}
FUSES = "5.0.0"  # experts are one parameter from here on, which bitsandbytes leaves as it is (fates.experts_are_linear)
SHORTER, REACHED = 4, 1024  # samples may stay at a quarter of a bound, but a bound of 1,024 is reached: Alpaca's longest has 1,034 to 1,304 tokens
MOST_FACTS = 16  # more than any job of the corpus leaves open; this bounds the work
TOTALS = ("max_allocated", "max_reserved", "device_used", "host")


SCANS: dict[str, tuple[str, ...]] = {  # packages of which one brings a mixer's fused scan
    "mamba": ("mamba-ssm",), "mamba2": ("mamba-ssm",), "gated-delta": ("flash-linear-attention", "fla"),
}  # fmt: skip
MEGATRON_DROPOUT = 0.1  # its default for attention and hidden states
UNDESCRIBED = frozenset({None, "custom", "colossalchat", "arctic"})  # names of job.framework without a table in knowledge/frameworks

DECIDES = "max_allocated"  # by this total the least and the most of an unknown are chosen: the others follow it
Change = Callable[[Run], Run | None]  # the run with one unknown at another value; None where it does not apply


class Move(Struct, frozen=True):
    """One unknown, and how far it takes each total down and up, bytes. ``least``, ``most``: the changes that take it farthest."""

    field: str
    below: dict[str, int]
    above: dict[str, int]
    least: Change | None
    most: Change | None


def widths(run: Run, again: Callable[[Run], Ledger]) -> Callable[[Ledger], dict[str, Interval]]:
    """A function that gives a ledger's totals their ranges; ``again`` estimates a varied run."""

    def of(ledger: Ledger) -> dict[str, Interval]:
        out = {}
        for name, i in structural(run, ledger, again).items():
            low, high, less, more = own_error(run, name)
            out[name] = Interval(round(i.low * low * less), i.expected, round(i.high * high * more))
        return _within_card(run, ledger, _nested(out))

    return of


def own_error(run: Run, name: str) -> tuple[float, float, float, float]:
    """The estimator's own error for a total, low and high, and what a family without a reader adds to it."""
    low, high = errors(name, kinds(run)) if name != "host" else (1.0, 1.0)
    less, more = guesses() if run.architecture is not None and (run.architecture.guessed or run.architecture.undescribed) else (1.0, 1.0)
    return low, high, less, more


def structural(run: Run, ledger: Ledger, again: Callable[[Run], Ledger]) -> dict[str, Interval]:
    """The range that the run itself leaves open: assumed facts, versions that are not known, and the own ranges of what torch does not allocate."""
    expected = {name: interval.expected for name, interval in ledger.expected_totals().items()}
    below, above = _spread(run, again, expected)
    for h in ledger.holdings:
        if h.part in OUTSIDE_ALLOCATED and AT_LEAST in h.values:
            for name in ("max_reserved", "device_used") if h.part == "allocator" else ("device_used",):
                below[name] += max(0, h.bytes - h.values[AT_LEAST])
                above[name] += max(0, h.values[AT_MOST] - h.bytes)
    return {name: Interval(max(0, value - below[name]), value, value + above[name]) for name, value in expected.items()}


def kinds(run: Run) -> tuple[str, ...]:
    """The kinds a run belongs to, narrowest first: who models it and in a known version or not, how it is divided, what is trained."""
    job = run.job
    strategy = job.parallel.strategy or "none"
    divided = "single" if strategy in ("none", "ddp") else "megatron" if strategy.startswith("megatron") else "sharded"
    method = "adapters" if job.method.kind in ("lora", "dora") else "full"
    source = job.model.source or "huggingface"
    version = "of a known version" if (job.framework.versions or {}).get(PACKAGE.get(source, source)) else "of an unknown version"
    return (f"{source} {version} {divided} {method}", f"{source} {version} {divided}", f"{source} {divided}", divided, "all")


@cache
def _table() -> dict[str, Any]:
    try:
        return dict(knowledge.load_yaml("errors.yaml"))
    except knowledge.KnowledgeError:
        return {}


def errors(total: str, of: tuple[str, ...]) -> tuple[float, float]:
    """Measured over estimated, low and high, for the narrowest kind that the table has; ``(1, 1)`` without a table."""
    rows = _table().get(total, {})
    for kind in of:
        if kind in rows:
            return float(rows[kind]["low"]), float(rows[kind]["high"])
    return 1.0, 1.0


@cache
def guesses() -> tuple[float, float]:
    """Probed over estimated among families that were read by the look of their keys: the 5th and 95th of a hundred (``knowledge/unread_families.yaml``)."""
    found = sorted(float(ratio) for ratio in knowledge.load_yaml("unread_families.yaml")["probed_over_estimated"].values())
    return min(1.0, found[len(found) // 20]), max(1.0, found[len(found) - 1 - len(found) // 20])


def moves(run: Run, again: Callable[[Run], Ledger], expected: dict[str, int]) -> list[Move]:
    """What is not known, and how far it takes each total down and up. Kept with the run, for whoever asks why."""
    found = [moved(run, again, expected, field, changes) for field, changes in unknown(run)]
    run._cache["moves"] = found
    return found


def moved(run: Run, again: Callable[[Run], Ledger], expected: dict[str, int], field: str, changes: Sequence[Change]) -> Move:
    """How far one unknown takes the totals that ``expected`` names."""
    low, high = dict.fromkeys(expected, 0), dict.fromkeys(expected, 0)
    least, most = None, None
    for change in changes:
        totals = _totals(change(run), again)
        for name in expected if totals else ():
            move = totals[name].expected - expected[name]
            if name == DECIDES and -move > low[name]:
                least = change
            if name == DECIDES and move > high[name]:
                most = change
            low[name], high[name] = max(low[name], -move), max(high[name], move)
    return Move(field, low, high, least, most)


def unknown(run: Run) -> list[tuple[str, list[Change]]]:
    """By field, the changes that give what is not known its other values."""
    varied = [f for f in run.facts.values() if f.alternatives][:MOST_FACTS]
    found: list[tuple[str, list[Change]]] = [(fact.field, [partial(_with, fact=fact, value=other) for other in fact.alternatives]) for fact in varied]
    found += [*_other_versions(run), ("batch.lengths", [_shorter]), ("parallel.limit_all_gathers", [_unlimited])]
    found += [("activations.loss", [_loss_in_graph]), ("parallel.wrap.embeddings", [_own_units]), ("model.config", [_dropout])]
    found += [("framework.keeps_outputs", [_outputs_kept]), ("framework.versions", [_scans_in_python])]
    return found


def _totals(run: Run | None, again: Callable[[Run], Ledger]) -> dict[str, Interval]:
    try:
        return again(run).expected_totals() if run is not None else {}
    except CannotEstimate:  # packed sequences, where only the samples' lengths are known
        return {}


def _spread(run: Run, again: Callable[[Run], Ledger], expected: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """How far each total moves when what is not known takes its other values.

    The unknown are independent of each other, so their moves are joined as independent uncertainties are: by the root of the sum of squares
    (JCGM 100:2008, 5.1.2). It ends where all of them at once would take the total, which is estimated as one run: two facts that free the same
    bytes free them once.
    """
    found = moves(run, again, expected)
    below, above = joined(run, again, expected, found, -1), joined(run, again, expected, found, 1)
    return {name: min(value, expected[name]) for name, value in below.items()}, above


def joined(run: Run, again: Callable[[Run], Ledger], expected: dict[str, int], found: Sequence[Move], sign: int) -> dict[str, int]:
    """How far all of the moves take each total together, down (``sign`` -1) or up (1)."""
    single = [move.below if sign < 0 else move.above for move in found]
    farthest = {name: _joined([one[name] for one in single]) for name in expected}
    together = [change for move in found if (change := move.least if sign < 0 else move.most) is not None]
    if len(together) > 1:
        totals = _totals(_changed(run, together), again)
        for name in expected if totals else ():
            farthest[name] = min(farthest[name], max(*[one[name] for one in single], sign * (totals[name].expected - expected[name])))
    return farthest


def _joined(found: list[int]) -> int:
    return round(hypot(*found))


def _changed(run: Run, changes: list[Change]) -> Run:
    """The run with several of the unknown replaced, each where it still applies."""
    for change in changes:
        run = change(run) or run
    return run


def _other_versions(run: Run) -> list[tuple[str, list[Change]]]:
    """The run under versions of a library that decides and is not known: before and after the changes that weigh most."""
    source, known = run.job.model.source or "huggingface", run.job.framework.versions or {}
    package = PACKAGE.get(source, "bitsandbytes" if source == "litgpt" and run.job.method.base in ("nf4", "fp4") else "")
    if package not in DECIDING or package in known:
        return []
    deciding = DECIDING[package]
    if package == "transformers" and run.architecture is not None and version_open(run.architecture, run.job):
        deciding = (*deciding, FUSES)
    return [(f"framework.versions.{package}", [partial(_of_version, package=package, version=version) for version in deciding])]


def _shorter(run: Run) -> Run | None:
    """The run with samples that stay well below a bound they are not packed to: it may need less, never more.

    An encoder-decoder's two sequences have a bound each, of which a job states the longer one.
    """
    batch = run.job.batch
    if batch.packed is not False or batch.lengths is not None or batch.token_budget is not None:
        return None
    if (batch.seq_len or 0) <= REACHED and not (run.architecture is not None and run.architecture.encoder_decoder):
        return None
    return replace(run, job=replace(run.job, batch=replace(batch, seq_len=(batch.seq_len or 0) // SHORTER)))


def _own_loop(run: Run) -> bool:
    """Whether nobody knows the training loop: it is the user's own, or a framework's that no table describes."""
    return run.job.framework.name in UNDESCRIBED


def _outputs_kept(run: Run) -> Run | None:
    """A loop may name the model's outputs until its next forward pass returns, as ``outputs = model(...)``; ``loss.backward()`` in the same function does."""
    framework = run.job.framework
    said = run.facts.get("framework.keeps_outputs")
    if (
        not _own_loop(run)
        or (said is not None and said.kind in ("stated", "read"))
        or (run.job.model.source or "huggingface") not in ("huggingface", "remote-code")
    ):
        return None
    return replace(run, job=replace(run.job, framework=replace(framework, keeps_outputs=True)))


def _loss_in_graph(run: Run) -> Run | None:
    """In a loop of one's own what is compiled may be each layer, the model, or the model with its loss, whose fp32 copies then never leave a kernel."""
    job = run.job
    whole = job.activations.loss in ("full-fp32", "full") and (job.model.source or "huggingface") in ("huggingface", "remote-code")
    if not job.activations.compile or not whole or not _own_loop(run):
        return None
    return replace(run, job=replace(job, activations=replace(job.activations, loss=IN_GRAPH)))


def scan_packages(arch: Architecture) -> frozenset[str]:
    """Packages of which one brings the fused scans of an architecture's mixers; empty where it has none."""
    return frozenset(package for block in arch.blocks if block.mixer is not None for package in SCANS.get(block.mixer.kind, ()))


def _scans_in_python(run: Run) -> Run | None:
    """The packages of the fused scans may not be installed: transformers then runs its own code in Python, which keeps many times more."""
    job, arch = run.job, run.architecture
    wanted = scan_packages(arch) if arch is not None else frozenset()
    named = {name.replace("_", "-") for name in job.framework.versions or {}}
    if not wanted or wanted & named or (job.model.source or "huggingface") != "huggingface":
        return None
    return replace(run, job=replace(job, activations=replace(job.activations, kernels=(*(job.activations.kernels or ()), PYTHON))))


def _dropout(run: Run) -> Run | None:
    """Megatron's dropouts are arguments of its own, 0.1 unless set (arguments.py, TransformerConfig), which a model's config does not say."""
    job, known = run.job, run.job.model.config or {}
    if job.model.source != "megatron" or run.architecture is None or not {"attention_dropout", "hidden_dropout"}.isdisjoint(known):
        return None
    varied = replace(run, job=job)
    varied.__dict__["architecture"] = replace(run.architecture, attention_dropout=MEGATRON_DROPOUT, hidden_dropout=MEGATRON_DROPOUT)
    return varied


def _own_units(run: Run) -> Run | None:
    """Who calls fully_shard in a loop of one's own may have made the embedding and the head units of their own."""
    parallel = run.job.parallel
    if parallel.strategy != "fsdp2" or not _own_loop(run) or (parallel.wrap is not None and parallel.wrap.embeddings is not None):
        return None
    wrap = replace(parallel.wrap, embeddings="own unit") if parallel.wrap is not None else Wrap(embeddings="own unit")
    return replace(run, job=replace(run.job, parallel=replace(parallel, wrap=wrap)))


def _unlimited(run: Run) -> Run | None:
    """Without FSDP's rate limiter the host asks for units ahead of the card, at most for all of them: as if none were freed after its forward pass.

    llama-cookbook pull request 41: fifteen of 32 blocks of a Llama-2-7B more. How far it gets is a matter of the two speeds, so only the high end moves.
    """
    parallel = run.job.parallel
    if parallel.strategy != "fsdp1" or parallel.limit_all_gathers is not False or parallel.reshard_after_forward is False:
        return None
    return replace(run, job=replace(run.job, parallel=replace(parallel, reshard_after_forward=False)))


def _of_version(run: Run, package: str, version: str) -> Run:
    framework = run.job.framework
    versions = {**(framework.versions or {}), package: version}
    return replace(run, job=replace(run.job, framework=replace(framework, versions=versions)))


def _with(run: Run, fact: Fact, value: Any) -> Run | None:
    """The run with one assumed value replaced. Only that value is validated."""
    section, _, name = fact.field.partition(".")
    if name:
        current = getattr(run.job, section)
        outer, _, inner = name.partition(".")
        if current is None or (inner and getattr(current, outer) is None):
            return None
        if inner:
            name, value = outer, replace(getattr(current, outer), **{inner: value}).written()
        try:
            checked = getattr(validated(type(current), {name: value}, section), name)
        except ValueError:  # a default's table that lists what the field does not take: no reason to fail here
            return None
        job = replace(run.job, **{section: replace(current, **{name: checked})})
    else:
        job = replace(run.job, **{section: value})
    varied = replace(run, job=job)
    if section != "model":
        varied.__dict__["architecture"] = run.architecture  # the same model: no need to read its config again
    return varied


def _nested(out: dict[str, Interval]) -> dict[str, Interval]:
    """Reserved is never less than allocated, nor the device's figure less than reserved: their ranges neither."""
    floor = out["max_allocated"]
    for name in ("max_reserved", "device_used"):
        i = out[name]
        out[name] = floor = Interval(min(max(i.low, floor.low), i.expected), i.expected, max(i.high, floor.high))
    return out


def _within_card(run: Run, ledger: Ledger, out: dict[str, Interval]) -> dict[str, Interval]:
    """The allocator's cache gives way at the card's edge: reserved and device figures end there unless allocated does not."""
    usable = run.usable
    if usable is None:
        return out
    context = ledger.outside("context")
    floor = out["max_allocated"]
    limits = {"max_reserved": (usable[0] - context, 0), "device_used": (usable[0], context)}
    for name, (limit, extra) in limits.items():
        i = out[name]
        high = i.high if i.expected >= limit else max(min(i.high, limit), floor.high + extra, i.expected)
        out[name] = Interval(min(i.low, i.expected), i.expected, high)
    return out
