"""What the probe's child process is asked to do, and the errors it answers with."""

from __future__ import annotations


class CannotProbe(ValueError):  # noqa: N818  the name is part of the public interface
    """A job that the probe can not run; the message says what can not be run and what stands in for it."""
