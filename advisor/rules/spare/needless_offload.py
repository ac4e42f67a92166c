"""State is offloaded that would fit on the card."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.run import Run
from advisor.units import show

ROOM = 0.85
PARTS = ("parameters", "optimizer", "gradients", "activations")


def _offloaded(run: Run) -> list[str]:
    return [name for name in PARTS if getattr(run.job.offload, name) in ("cpu", "nvme")]


def _applies(run: Run, evidence: Evidence) -> str | None:
    if evidence.failure is not None:
        return "the run failed: there is no room to give away"
    return None if _offloaded(run) else "nothing is offloaded"


def _fits_without(run: Run, evidence: Evidence) -> str | None:
    if run.usable is None or run.missing or evidence.failure is not None or not _offloaded(run):
        return None
    ledger = ledger_of(run.but(offload=dict.fromkeys(_offloaded(run), "none")))
    if ledger is None:
        return None
    need = ledger.totals()["device_used"].high
    return f"with everything on the card it would need at most {show(need)} of {show(run.usable[0])}" if need < ROOM * run.usable[0] else None


RULE = Rule(
    id="needless-offload",
    tier="spare",
    title="State is kept in host memory although it would fit on the card",
    cleared="What is offloaded would not fit, or nothing is.",
    prior=-0.5,
    applies=_applies,
    marks=(Mark("needless-offload-fits", 3.0, "fits without", "the estimate of the run without offloading", when=_fits_without),),
    remedies=("less-offload", "larger-micro-batch"),
    fires=(
        Example(
            "a small model, offloaded",
            job=job(
                "Qwen/Qwen2.5-0.5B",
                method="{kind: full}",
                precision="{weights: bf16}",
                batch="{micro_batch: 1, seq_len: 1024}",
                activations="{checkpointing: none, attention: flash-2}",
                offload="{optimizer: cpu}",
                parallel="{strategy: zero2, shard: 1}",
                hardware="{gpu: h100-80gb, gpus_per_node: 1}",
                optimizer="{name: adamw}",
            ),
        ),
    ),
    quiet=(Example("a failure", job=job(offload="{optimizer: cpu}"), text=oom("512.00 MiB", allocated=76.5)),),
)
