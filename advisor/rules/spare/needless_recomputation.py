"""Checkpointing where the activations would fit."""

from __future__ import annotations

from advisor.evidence import Evidence
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
    return None if checkpoints(run) else "checkpointing is off"


def _fits_without(run: Run, evidence: Evidence) -> str | None:
    if run.usable is None or run.missing or evidence.failure is not None or not checkpoints(run):
        return None
    ledger = ledger_of(run.but(activations={"checkpointing": "none"}))
    if ledger is None:
        return None
    need = ledger.totals()["device_used"].high
    return f"without recomputation it would need at most {show(need)} of {show(run.usable[0])}" if need < ROOM * run.usable[0] else None


RULE = Rule(
    id="needless-recomputation",
    tier="spare",
    title="Activations are recomputed although they would fit",
    cleared="Recomputation is needed, or off.",
    prior=-0.5,
    applies=_applies,
    marks=(Mark("needless-recomputation-fits", 3.0, "fits without", "the estimate of the run without checkpointing", when=_fits_without),),
    remedies=("less-checkpointing", "larger-micro-batch"),
    fires=(
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
