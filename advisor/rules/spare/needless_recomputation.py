"""Checkpointing where the activations would fit."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import observed, tried
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.rules.situation import checkpoints
from advisor.run import Run
from advisor.units import show

ROOM = 0.85  # of the usable memory: below it the run without recomputation keeps a margin


def _applies(run: Run, evidence: Evidence) -> str | None:
    if evidence.failure is not None:
        return "the run failed: there is no room to give away"
    return None if checkpoints(run) or _tried(run, evidence) else "checkpointing is off"


def _fits_without(run: Run, evidence: Evidence) -> str | None:
    if run.usable is None or run.missing or evidence.failure is not None or not checkpoints(run):
        return None
    ledger = ledger_of(run.but(activations={"checkpointing": "none"}))
    if ledger is None:
        return None
    need = ledger.totals()["device_used"].high
    return f"without recomputation it would need at most {show(need)} of {show(run.usable[0])}" if need < ROOM * run.usable[0] else None


def _tried(_run: Run, evidence: Evidence) -> str | None:
    """Both were tried, both ran, and the try with recomputation was slower."""
    both = tried.pair(evidence, tried.CHECKPOINTING)
    return f"both ran: {both.says}" if both is not None and both.slower and evidence.failure is None else None


LITTLE = 0.25  # of the card: activations kept are some times what is in use with one block's alone, and rarely more than the rest of it


def _much_free(run: Run, evidence: Evidence) -> str | None:
    """Most of the card is free by what the run itself prints."""
    used, total = observed.most_used(run, evidence)
    if evidence.failure is not None or used is None or total is None or not checkpoints(run) or used > LITTLE * total:
        return None
    return f"{show(used)} of {show(total)} are in use with everything recomputed"


RULE = Rule(
    id="needless-recomputation",
    tier="spare",
    title="Activations are recomputed although they would fit",
    cleared="Recomputation is needed, or off.",
    prior=-0.5,
    applies=_applies,
    marks=(
        Mark("needless-recomputation-fits", 3.0, "fits without", "the estimate of the run without checkpointing", when=_fits_without),
        Mark("needless-recomputation-tried", 3.5, "tried without", "a figure of a try says that it ran: with the activations kept it fits", when=_tried),
        Mark("needless-recomputation-free", 2.0, "most of the card is free", "what is printed in use, against the card", when=_much_free),
    ),
    remedies=("less-checkpointing", "larger-micro-batch"),
    fires=(
        Example(
            "both were tried",
            text="gradient_checkpointing=True: 21.3 GB, 1.9 s/it\ngradient_checkpointing=False: 40.1 GB, 1.4 s/it\n",
        ),
        Example(
            "a small model with room",
            job=job(
                "Qwen/Qwen2.5-0.5B",
                method="{kind: full}",
                precision="{weights: bf16}",
                batch="{micro_batch: 1, seq_len: 1024}",
                activations="{checkpointing: full, attention: flash-2}",
                hardware="{gpu: h100-80gb, gpus_per_node: 1}",
                parallel="{strategy: none}",
                optimizer="{name: adamw}",
            ),
        ),
    ),
    quiet=(Example("a failure", job=job(activations="{checkpointing: full}"), text=oom("512.00 MiB", allocated=76.5)),),
)
