"""A fault of the watcher ends the watching, never the training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from advisor.measurement.watching.policy import NotApproved

if TYPE_CHECKING:
    from advisor.measurement.watching.stepping import Stepping


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """A fault of the watcher ends the watching, not the training; what the policy raises passes."""

    @functools.wraps(hook)
    def call(self: Stepping, *args: Any) -> None:
        if self.failed is not None:
            return
        try:
            hook(self, *args)
        except (NotApproved, Warning):
            raise
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            self.event("watcher-failed", "warning", error=self.failed[:300])
            self.leave()

    return call
