"""State is offloaded that would fit on the card."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import observed, static_state, tried
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
    return None if _offloaded(run) or _tried(run, evidence) else "nothing is offloaded"


def _fits_without(run: Run, evidence: Evidence) -> str | None:
    if run.usable is None or run.missing or evidence.failure is not None or not _offloaded(run):
        return None
    ledger = ledger_of(run.but(offload=dict.fromkeys(_offloaded(run), "none")))
    if ledger is None:
        return None
    need = ledger.totals()["device_used"].high
    return f"with everything on the card it would need at most {show(need)} of {show(run.usable[0])}" if need < ROOM * run.usable[0] else None


_OWNERS = r"FSDPStrategy|DeepSpeedStrategy"  # Lightning: the offload is an argument of the strategy, which people name for it


def _tried(_run: Run, evidence: Evidence) -> str | None:
    """Both were tried, both ran, and the try without offloading was faster, or took no more."""
    both = tried.pair(evidence, tried.OFFLOAD, owner=_OWNERS if _sets(evidence) else "")
    if evidence.failure is not None:
        return None
    if both is not None:
        return f"both ran: {both.says}" if both.slower or both.saves_nothing else None
    alone = tried.without(evidence, tried.OFFLOAD)
    return f"without it the run took {alone.says} ({alone.where})" if alone is not None else None


def _sets(evidence: Evidence) -> bool:
    return any("offload" in key and str(value).lower() not in ("false", "none", "no") for _, key, value in evidence.seen_keys)


def _measured(run: Run, evidence: Evidence) -> str | None:
    """What the card shows in use beside what is offloaded: all of it would have room."""
    used, total = observed.most_used(run, evidence)
    state = static_state.state_of(run.but(offload=dict.fromkeys(_offloaded(run), "none")), evidence) if _offloaded(run) else None
    if evidence.failure is not None or used is None or total is None or state is None:
        return None
    if used + state.bytes >= ROOM * total:
        return None
    return f"{show(used)} of {show(total)} are in use; weights, gradients and optimizer state of a rank are {show(state.bytes)} and would have room beside them"


RULE = Rule(
    id="needless-offload",
    tier="spare",
    title="State is kept in host memory although it would fit on the card",
    cleared="What is offloaded would not fit, or nothing is.",
    prior=-0.5,
    applies=_applies,
    marks=(
        Mark("needless-offload-fits", 3.0, "fits without", "the estimate of the run without offloading", when=_fits_without),
        Mark("needless-offload-tried", 3.5, "tried without", "a figure of a try says that it ran: with the state on the card it fits", when=_tried),
        Mark("needless-offload-measured", 3.0, "room on the card", "what is in use, and the state by the estimate's ledger", when=_measured),
    ),
    remedies=("less-offload", "larger-micro-batch"),
    fires=(
        Example(
            "both were tried",
            text="With cpu_offload a step takes 31 s and 14 GB. Without the offload it is 2.4 s and 37 GB on my 80GB card, and it runs.\n",
        ),
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
    quiet=(
        Example("the one that does not fit", text="With cpu_offload 31 GB are used. Without offload it is out of memory.\n"),
        Example("a failure", job=job(offload="{optimizer: cpu}"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
