"""What a run is allowed to do: an unapproved widening or copy above a size warns, or raises where it happens."""

from __future__ import annotations

import fnmatch
import warnings
from dataclasses import dataclass
from typing import Literal

from advisor.measurement.watching.finding import Finding
from advisor.units import read_size

Action = Literal["allow", "warn", "raise"]
WIDENING = frozenset({"framework-upcast"})
COPIES = frozenset({"duplicate-layout", "reference-copy", "resume-on-device"})


class NotApproved(RuntimeError):  # noqa: N818  part of the public interface
    """A widening or a copy that the policy does not approve; raised where it happens (a copy: where the next step begins)."""


class NotApprovedWarning(UserWarning):
    """The same as a warning."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``widening`` and ``copies``: what to do above ``above`` (``"64MiB"``). ``approved``: patterns of places (``transformers/*norm*``, ``train.py:12``)."""

    widening: Action = "warn"
    copies: Action = "warn"
    above: str | int = "64MiB"
    approved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.limit()

    def limit(self) -> int:
        """The size in bytes.

        Raises:
            ValueError: ``above`` is no size.
        """
        if isinstance(self.above, int):
            return self.above
        size = read_size(self.above)
        if size is None:
            raise ValueError(f"the policy's size {self.above!r} is no size; write it like '64MiB'")
        return size.bytes

    @property
    def raises(self) -> bool:
        """Whether every step must be observed, because something may have to be stopped."""
        return self.widening == "raise"

    def judge(self, finding: Finding) -> None:
        """Warn or raise for a finding that is not approved."""
        action = self.widening if finding.kind in WIDENING else self.copies if finding.kind in COPIES else "allow"
        if action == "allow" or finding.bytes < self.limit() or any(fnmatch.fnmatch(finding.where, f"{p}*") for p in self.approved):
            return
        text = f"not approved: {finding.title}, at {finding.where}; approve the place in the policy or narrow it"
        if action == "raise":
            raise NotApproved(text)
        warnings.warn(text, NotApprovedWarning, stacklevel=2)
