"""The probe as a predictor for ``advisor accuracy --by probe``; where it can not run, the estimate stands in, and is said to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from advisor.arithmetic import estimate
from advisor.ledger import Ledger
from advisor.run import Run
from advisor.simulation.probing import TIMEOUT_SECONDS, probe
from advisor.simulation.request import CannotProbe

CODE_BASES = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "accelerate", "unsloth", "custom"})


def predictor(*, install_versions: bool, timeout: float = TIMEOUT_SECONDS, say: Callable[[str], None] = lambda _: None) -> Callable[[Run], Ledger]:
    """A function from run to ledger: ``kind`` is probed, or estimated with the reason as its last note."""

    def predict(run: Run) -> Ledger:
        say(run.job.name or "a job")
        try:
            if run.job.framework.name not in CODE_BASES:
                raise CannotProbe(f"the probe does not run {run.job.framework.name or 'an unnamed framework'}'s own modelling code")
            return probe(run, timeout=timeout, install_versions=install_versions).ledger
        except CannotProbe as error:
            ledger = estimate(run)
            return replace(ledger, notes=(*ledger.notes, str(error)), _cache={})

    return predict
