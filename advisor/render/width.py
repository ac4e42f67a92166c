"""Why a range is wide: what is not known and moves the figure most, and what to paste so that it is known."""

from __future__ import annotations

from advisor.ledger import Ledger
from advisor.render import words
from advisor.run import Run
from advisor.units import show

WIDE = 0.2  # of the expected figure, up or down
TOTAL = "max_allocated"
PASTE = {  # by field or section: where a person finds what settles it
    "framework.versions": 'what "advisor collect" or "pip list" prints',
    "batch.lengths": 'how long the samples are, as "advisor lengths DATA" prints it (batch.lengths of a job file)',
    "batch.seq_len": "the line that cuts samples (max_length, cutoff_len, block_size), or the log's longest batch",
    "hardware": "what nvidia-smi prints on that machine",
    "model": "the model's config.json",
    "load": "the from_pretrained(...) call",
    "rollout": "the arguments of the rollout engine",
    "parallel": "the launch command and the FSDP or DeepSpeed config",
    "offload": "the FSDP or DeepSpeed config",
}
ARGUMENTS = "the training arguments or the config that sets it"


def explained(run: Run | None, ledger: Ledger | None) -> str | None:
    """One or two sentences where the range of what PyTorch allocates is wider than 20 % up or down; ``None`` where it is not, or nothing was estimated."""
    if run is None or ledger is None or ledger.kind != "estimated" or not ledger.peak().bytes:
        return None
    total = ledger.totals()[TOTAL]
    down, up = 1 - total.low / total.expected, total.high / total.expected - 1
    if max(down, up) <= WIDE:
        return None
    said = f"The range is wide (−{down:.0%} to +{up:.0%})"
    field, below, above = _widest(run, ledger)
    own_low, own_high = _own_error(run)
    if below + above < (own_high - own_low) * total.expected / 2:
        return (
            f"{said} because of the estimate's own error: in almost all public measurements a run of this kind stays within {own_low:.2f} and "
            f"{own_high:.2f} times the range that its settings leave open. A probe or a measurement of this run narrows it (advisor probe, advisor validate)."
        )
    return f"{said} mostly because {_unknown(run, field)}: {_moved(below, above)}. To narrow it, paste {_paste(field)}."


def _widest(run: Run, ledger: Ledger) -> tuple[str, int, int]:
    from advisor.arithmetic import estimate
    from advisor.arithmetic.interval import moves

    found = run._cache.get("moves")
    if found is None:
        found = moves(run, estimate, {name: interval.expected for name, interval in ledger.expected_totals().items()})
    return max(((move.field, move.below[TOTAL], move.above[TOTAL]) for move in found), key=lambda move: move[1] + move[2], default=("", 0, 0))


def _own_error(run: Run) -> tuple[float, float]:
    from advisor.arithmetic.interval import errors, kinds

    return errors(TOTAL, kinds(run))


def _unknown(run: Run, field: str) -> str:
    if field.startswith("framework.versions."):
        return f"the version of {field.rpartition('.')[2]} is not known"
    if field == "batch.lengths":
        return "samples are not packed, and how long they are is not known"
    fact, name = run.facts.get(field), words.field(field).lower()
    if field == "parallel.limit_all_gathers" or fact is None:
        return f"{name} leaves it open how much is gathered at once"
    others = ", ".join(words.value(value) for value in fact.alternatives if value != fact.value)
    return f"{name} is assumed ({words.value(fact.value)}; it may be {others})" if others else f"{name} is assumed ({words.value(fact.value)})"


def _moved(below: int, above: int) -> str:
    sides = [f"{show(size)} {side}" for size, side in ((below, "less"), (above, "more")) if size]
    return f"that alone may be {' or '.join(sides)}"


def _paste(field: str) -> str:
    section = field.partition(".")[0]
    return next((PASTE[key] for key in (field, field.rpartition(".")[0], section) if key in PASTE), ARGUMENTS)
