"""What a technique is: a function from run to run, registered under its id of the vocabulary.

What it saves is the difference of two estimates and what it costs the ratio of two step times, so neither is typed in. Words about it
(what can go wrong, how to see that it worked, sources) are in ``knowledge/techniques/<id>.md``.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from advisor.rules.rule import Tier
from advisor.run import Run


class NotApplicable(Struct, frozen=True):
    """Why a technique can not be used on a run: card, model family, framework, version, exclusion, or nothing to gain.

    ``settled``: it stays out of the question whatever else becomes known (what it would set is set, or excludes it).
    """

    reason: str
    settled: bool = False


class Flags(Struct, frozen=True):
    """What one application does, where that depends on the run: bf16 weights are free for a frozen base, not for a trained one."""

    exact: bool
    alters_learning: bool


class Technique(Struct, frozen=True):
    """A registered technique. ``estimated`` False: an action outside the model (upgrade, free another process).

    ``alters_learning``: shorter sequences, another optimizer, a smaller rank: what is learned may change, so it comes last in
    its tier. ``exact``: the same numbers up to rounding.
    """

    id: str
    tier: Tier
    apply: Callable[[Run], Run | NotApplicable]
    exact: bool
    estimated: bool = True
    alters_learning: bool = False
    flags: Callable[[Run, Run], Flags] | None = None  # (before, after): where exactness depends on the run
    often: Callable[[Run, int], Run | NotApplicable] | None = None  # so many times at once, the same as one after the other

    def judged(self, before: Run, after: Run) -> Flags:
        """Whether this application is exact and whether it alters what is learned."""
        return self.flags(before, after) if self.flags is not None else Flags(self.exact, self.alters_learning)


_REGISTRY: dict[str, Technique] = {}


def technique(
    id: str,
    *,
    tier: Tier,
    exact: bool = True,
    estimated: bool = True,
    alters_learning: bool = False,
    flags: Callable[[Run, Run], Flags] | None = None,
    often: Callable[[Run, int], Run | NotApplicable] | None = None,
) -> Callable[[Callable[[Run], Run | NotApplicable]], Callable[[Run], Run | NotApplicable]]:
    """Register a function as a technique."""

    def register(function: Callable[[Run], Run | NotApplicable]) -> Callable[[Run], Run | NotApplicable]:
        if id in _REGISTRY:
            raise ValueError(f"technique {id!r} is registered twice")
        from advisor.techniques.of_torch import guarded

        _REGISTRY[id] = Technique(id, tier, guarded(id, function), exact, estimated, alters_learning, flags, often)
        return function

    return register


def registered() -> dict[str, Technique]:
    """What is registered so far; :func:`advisor.techniques.all_techniques` imports every tier first."""
    return dict(_REGISTRY)
