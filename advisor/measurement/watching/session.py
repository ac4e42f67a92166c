"""``with advisor.watch(model, optimizer) as seen:`` around a training loop: what is held twice, widened, kept, or not recomputed.

Most steps only pass four hooks. Some are observed operator by operator (:mod:`pacing` says which): at the default level as many as 2 % of the
time allow, with ``level="full"`` as many as 22 % do, which on a model of some size are nearly all. Where memory runs out, the top cause and its
first change stand under the traceback (:mod:`failing`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from advisor.measurement import software
from advisor.measurement.eventlog import VERSION, EventLog, of_rank
from advisor.measurement.watching import card, described, failing, owned
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.policy import NotApproved, Policy
from advisor.measurement.watching.stepping import Stepping


def watch(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *, log: Path | str | None = None, policy: Policy | None = None,
    level: Literal["default", "full"] = "default", least: int | None = None, checkpointing: bool | None = None, explain: bool = True,
    verify: bool = True,
) -> Watch:  # fmt: skip
    """Watch the steps within the ``with`` block.

    ``log``: a file for the events (``advisor events FILE`` reads it); of several ranks each writes its own, ``NAME.rankN.jsonl``. ``policy``:
    warns or raises for what is not approved. ``least``: bytes from which a tensor counts (default: 0.1 % of the model's state, at least 4 KiB).
    ``checkpointing``: whether it is meant to be on; ``None``: as the model's switches say. ``explain``: where memory runs out, note cause and first
    change on the exception and write a diagnosis bundle. ``verify``: run one block of an observed step once more, with and without its checkpoint,
    and compare the gradients (not where that would have an effect on the run: the log says why).
    """
    return Watch(model, optimizer, log=log, policy=policy, level=level, least=least, checkpointing=checkpointing, explain=explain, verify=verify)


class Watch(Stepping):
    """A watched run. ``findings`` are faults, ``notes`` what is worth knowing; both are complete when the block ends."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, *, log: Path | str | None, policy: Policy | None,
        level: str, least: int | None, checkpointing: bool | None, explain: bool, verify: bool,
    ) -> None:  # fmt: skip
        super().__init__(model, optimizer, policy or Policy("allow", "allow"), full=level == "full", least=least, asked=checkpointing, verify=verify)
        self.level, self.framework = level, "custom"
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.running = False
        self._log = EventLog(of_rank(Path(log))) if log is not None else None
        self._known: set[tuple[str, str, str | None, str]] = set()
        self._explain, self._moment = explain, dict[str, int]()
        self._card: card.Card | None = None
        self._described = False

    def __enter__(self) -> Self:
        """Begin to watch."""
        self.begin()
        failing.observe(self._ran_out)
        self._card = card.of_model(self.model)
        self.running = True
        self.event("start", version=VERSION, torch=torch.__version__, level=self.level, stored_bytes=owned.stored_bytes(self.model))
        if self._card is not None and self._card.absent is not None:
            self.event("device-absent", why=self._card.absent)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The last boundary, and the end."""
        self.running = False
        phase = self.phase
        self.finish()
        if error is None:
            with suppress(NotApproved, Warning):
                self._boundary()
        else:
            self.event("failed", "warning", error=type(error).__name__, phase=phase)
            self.note_failure(error, phase)
        self._boundaries.close()
        self._describe()
        self.event("end", steps=self.step, observed=self.observed, seconds=round(time.monotonic() - self._pace.began, 3), peaks=self.peak_bytes())
        if self._log is not None:
            self._log.close()

    def event(self, kind: str, level: str = "note", **values: Any) -> None:
        """Write to the log, where there is one; beside an observed step, how the card does."""
        if self._log is None:
            return
        self._log.write(kind, level, **values)
        if kind == "step" and self._card is not None and (seen := self._card.sample()):
            self._log.write("device", "note", step=self.step, **seen)
        if kind == "step" and self.step:  # micro batches of a step are known once one has ended
            self._describe()

    def _describe(self) -> None:
        """Log once what runs: settings as model, optimizer and batch tell them, and versions. A baseline is held against it."""
        if self._log is None or self._described or not self.step:
            return
        self._described = True
        try:
            device = next((p.device.type for p in self.model.parameters()), "cpu")
            self._log.write("software", "note", versions=software.loaded(device))
            self._log.write("job", "note", job=self.job())
        except Exception as fault:  # the run goes on
            self._log.write("watcher-failed", "warning", error=f"{type(fault).__name__}: {fault}"[:300])

    def peak_bytes(self) -> dict[str, int]:
        """The largest live bytes of each phase, of the observed steps."""
        return {phase: size for phase, (size, _) in self.peaks.items()}

    def job(self) -> dict[str, Any]:
        """The run as a job file's content, as far as model, optimizer and batch tell it."""
        return described.described(
            self.model, self.optimizer, tokens=self.tokens, forwards=self.forwards or None, recomputes=self.recomputes if self.step else None,
            autocast=self.autocast, framework=self.framework,
        )  # fmt: skip

    def found(self, finding: Finding) -> None:
        """Keep, log and judge a finding; the same one at the same place once."""
        key = (finding.kind, finding.where, finding.name, finding.level)
        if key in self._known:
            return
        self._known.add(key)
        (self.findings if finding.level == "warning" else self.notes).append(finding)
        self.event("finding", finding.level, **{("cause" if k == "kind" else k): v for k, v in finding.to_json().items() if k != "level"})
        if finding.kind != "framework-upcast":  # judged where it happened
            self.policy.judge(finding)

    def note_failure(self, error: BaseException, phase: str | None = None) -> None:
        """Where memory ran out: log what was so, and note cause and first change on the exception. Never raises."""
        if not failing.is_memory(error) or getattr(error, "__advised__", False):
            return
        try:
            moment = self._moment or failing.counters()
            self.event("out-of-memory", "warning", phase=phase or self.phase, step=self.step, **moment)
            if not self._explain:
                return
            facts = failing.facts(self.step, phase or self.phase, self.peaks, self.findings, moment)
            where = self._log.path.with_suffix(".diagnosis.json") if self._log is not None else None
            said = failing.explained(error, self.job(), self.findings, facts, where)
            if said is not None:
                error.add_note(said)
                error.__advised__ = True  # type: ignore[attr-defined]  # the last hook may see it again
        except Exception as fault:  # the run's own error is what matters
            self.event("watcher-failed", "warning", error=f"{type(fault).__name__}: {fault}"[:300])

    def _ran_out(self, moment: dict[str, int]) -> None:
        self._moment = moment
