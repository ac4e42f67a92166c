"""Whether what a rank holds for the whole of training is too large by itself: then no smaller batch and no recomputation is the cure.

Weights, gradients, optimizer state and frozen models, by the estimate, without activations and logits: they depend on neither micro
batch nor length, so they can be told where those are not known.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.rules import counters, growth
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Mark
from advisor.rules.situation import DIVIDES_WEIGHTS, TRAINING, gpus, in_phase, loads_weights, moves_module, parameters, uncertain
from advisor.run import Run
from advisor.units import show

PARTS = ("weights", "gradients", "optimizer", "reference", "reward", "critic")
RESTS_ON = ("parallel.strategy", "precision.weights")
WIDTH = "precision.weights"


class State(Struct, frozen=True):
    """Bytes of a rank by part while the optimizer steps."""

    parts: dict[str, int]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.parts.values())


def state_of(run: Run, evidence: Evidence) -> State | None:
    """What a rank holds while the optimizer steps; ``None`` where neither an estimate nor the model's size is known. Found once a run."""
    found: dict[str, Any] = run._cache
    if "static-state" not in found:
        found["static-state"] = _state(run) or _by_size(run, evidence)
    state: State | None = found["static-state"]
    return state


def _state(run: Run) -> State | None:
    batch = run.job.batch
    if batch.micro_batch is None or batch.seq_len is None:
        run = run.but(batch={"micro_batch": batch.micro_batch or 1, "seq_len": batch.seq_len or 512})
    ledger = ledger_of(run)
    if ledger is None or not any(moment.phase == "step" for moment in ledger.moments):
        return None
    held = ledger.by_part(ledger.peak(("step",)).moment.id)
    return State({part: held[part] for part in PARTS if held.get(part)})


def _by_size(run: Run, evidence: Evidence) -> State | None:
    """The state of full training with Adam from the number of parameters alone, for a model whose shape is not known."""
    return of_size(run, parameters(run, evidence))


def of_size(run: Run, count: int | None) -> State | None:
    """The same for a number of parameters: weights and gradients in the weights' dtype, master weights where they are 16 bit, Adam's two moments."""
    job = run.job
    plain = job.method.kind == "full" and job.optimizer.name in ("adamw", "adam") and job.offload.optimizer in (None, "none")
    if count is None or not plain or (job.parallel.strategy not in (None, "none", "ddp") and gpus(run) > 1) or (job.parallel.tensor or 1) > 1:
        return None
    width = 4 if job.precision.weights == "fp32" else 2
    master = 4 if job.precision.master == "fp32" and width == 2 else 0
    moments = 8 if width == 4 or master or job.optimizer.states == "fp32" else 4
    return State({"weights": count * width, "gradients": count * width, "optimizer": count * (moments + master)})


def _capacity(run: Run, evidence: Evidence) -> int | None:
    return counters.of(evidence).capacity or (run.usable[0] if run.usable else None)


def _in_question(evidence: Evidence) -> bool:
    """Whether the state can be what failed: in training, and not after steps that went through with all of it in place."""
    return evidence.failure is not None and in_phase(evidence, *TRAINING, "load", None) and (growth.last_step(evidence) or 0) < 2


def exceeds(run: Run, evidence: Evidence) -> str | None:
    """The sentence where the state of the run as written is larger than the card."""
    state, capacity = (state_of(run, evidence), _capacity(run, evidence)) if _in_question(evidence) else (None, None)
    if state is None or capacity is None or state.bytes <= capacity:
        return None
    if in_phase(evidence, *TRAINING) and state.parts.get("weights", 0) > capacity:
        return None  # then it would have failed while loading: this is not the state that was there
    return f"weights, gradients and optimizer state alone are {show(state.bytes)} on a card of {show(capacity)}, whatever the batch"


def wider(run: Run) -> Run | None:
    """The run at the dtype that other versions of its framework load, where the version is not known."""
    fact = run.facts.get(WIDTH)
    if fact is None or not uncertain(run, WIDTH) or "fp32" not in fact.alternatives:
        return None
    if "wider-run" not in run._cache:
        run._cache["wider-run"] = run.but(precision={"weights": "fp32"})
    found: Run = run._cache["wider-run"]
    return found


def may_exceed(run: Run, evidence: Evidence) -> str | None:
    """The sentence where it is larger only under the default of other versions."""
    if exceeds(run, evidence) is not None or not _in_question(evidence) or (other := wider(run)) is None:
        return None
    found = exceeds(other, evidence)
    return f"{found}, if the weights are loaded in fp32, as other versions do" if found else None


def against(cause: str) -> tuple[Mark, Mark]:
    """Marks against a cause that a smaller batch or recomputation would cure."""
    source = "the estimate's ledger without activations and logits"
    return (
        Mark(f"{cause}-state-exceeds", -3.0, "the state alone exceeds the card", source, when=exceeds, rests_on=RESTS_ON),
        Mark(f"{cause}-state-may-exceed", -1.5, "the state alone may exceed the card", source, when=may_exceed),
    )


def narrowed(cause: str, part: str, least: float) -> tuple[Mark, Mark]:
    """Marks for a cause whose part is at least a share of a state that exceeds the card, and is not waiting to be divided."""
    source = "the estimate's ledger without activations and logits"

    def large(run: Run, evidence: Evidence) -> bool:
        state = state_of(run, evidence)
        if part != "weights" and (loads_weights(evidence) or moves_module(evidence)):
            return False  # only weights exist by then
        return state is not None and state.parts.get(part, 0) >= least * state.bytes and (gpus(run) == 1 or run.job.parallel.strategy in DIVIDES_WEIGHTS)

    def sure(run: Run, evidence: Evidence) -> str | None:
        return exceeds(run, evidence) if large(run, evidence) else None

    def unsure(run: Run, evidence: Evidence) -> str | None:
        if part == "optimizer" and in_phase(evidence, "forward", "loss", "backward"):
            return None  # torch makes the states in the first step, after them
        return may_exceed(run, evidence) if large(run, evidence) else None

    return (
        Mark(f"{cause}-state-exceeds", 2.0, "the state alone exceeds the card", source, when=sure, rests_on=RESTS_ON),
        Mark(f"{cause}-state-may-exceed", 1.0, "the state alone may exceed the card", source, when=unsure),
    )
