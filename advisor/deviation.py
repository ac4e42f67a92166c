"""How a run really differs from its job: the five forms of the contract.

Causes set deviations, techniques change the job or take them away, the arithmetic counts them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Form = Literal["extra-holding", "ineffective", "widened", "retained", "foreign"]


class Deviation(Struct, frozen=True):
    """One difference between what is written and what runs.

    extra-holding: ``part`` is held ``times`` more, in ``dtype``, during ``phases`` (empty: always).
    ineffective: the setting ``field`` has no effect (during ``phases`` only, where given).
    widened: ``field`` (a dtype) really is ``to``.
    retained: ``part`` of ``steps`` earlier steps is still alive.
    foreign: ``bytes`` of the card belong to others.
    """

    kind: Form
    part: str | None = None
    field: str | None = None
    dtype: str | None = None
    to: str | None = None
    times: float = 1
    steps: int = 1
    bytes: int = 0
    phases: tuple[str, ...] = ()
    cause: str | None = None  # the cause that set it

    def to_json(self) -> dict[str, Any]:
        """The contract's form: only what its kind uses."""
        used = {
            "extra-holding": ("part", "dtype", "times", "bytes", "phases"),
            "ineffective": ("field", "phases"),
            "widened": ("field", "to", "part"),
            "retained": ("part", "steps"),
            "foreign": ("bytes",),
        }[self.kind]
        out: dict[str, Any] = {"kind": self.kind}
        for name in (*used, "cause"):
            value = getattr(self, name)
            if value not in (None, (), 0) or (self.kind == "foreign" and name == "bytes"):
                out[name] = list(value) if isinstance(value, tuple) else value
        return out


def extra(part: str, *, dtype: str | None = None, times: float = 1, phases: tuple[str, ...] = (), bytes: int = 0, cause: str | None = None) -> Deviation:
    """``part`` is held again."""
    return Deviation("extra-holding", part=part, dtype=dtype, times=times, phases=phases, bytes=bytes, cause=cause)


def ineffective(field: str, *, phases: tuple[str, ...] = (), cause: str | None = None) -> Deviation:
    """The setting has no effect."""
    return Deviation("ineffective", field=field, phases=phases, cause=cause)


def widened(field: str, to: str, *, part: str | None = None, cause: str | None = None) -> Deviation:
    """A dtype is wider than written."""
    return Deviation("widened", field=field, to=to, part=part, cause=cause)


def retained(part: str, steps: int, *, cause: str | None = None) -> Deviation:
    """What earlier steps should have freed is alive."""
    return Deviation("retained", part=part, steps=steps, cause=cause)


def foreign(size_bytes: int, *, cause: str | None = None) -> Deviation:
    """Others hold part of the card."""
    return Deviation("foreign", bytes=size_bytes, cause=cause)
