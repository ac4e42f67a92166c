"""The probe as a predictor for ``advisor accuracy --by probe``; where it can not run, the estimate stands in, and is said to."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from advisor.arithmetic import estimate
from advisor.ledger import Ledger
from advisor.run import Run
from advisor.simulation.probing import TIMEOUT_SECONDS, asked_of
from advisor.simulation.request import CannotProbe
from advisor.simulation.sessions import Session

CODE_BASES = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "accelerate", "unsloth", "torchtitan", "custom"})
WHOLE = frozenset({"max_reserved", "nvidia-smi"})  # figures that need the whole stream


def predictor(
    session: Session, *, install_versions: bool, timeout: float = TIMEOUT_SECONDS, say: Callable[[str], None] = lambda _: None
) -> Callable[[Run, str], Ledger]:
    """A function from run and metric to ledger: ``kind`` is probed, or estimated with the reason as its last note."""

    def predict(run: Run, metric: str) -> Ledger:
        say(run.job.name or "a job")
        try:
            if run.job.framework.name not in CODE_BASES:
                raise CannotProbe(f"the probe does not run {run.job.framework.name or 'an unnamed framework'}'s own modelling code")
            return asked_of(session, run, timeout=timeout, say=say, install_versions=install_versions, whole=metric in WHOLE).ledger
        except CannotProbe as error:
            ledger = estimate(run)
            return replace(ledger, notes=(*ledger.notes, str(error)))

    return predict
