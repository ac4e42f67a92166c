"""Reading: text, file, folder or archive to evidence, and a job where it names one. One file a format."""

from __future__ import annotations

from advisor.reading.reading import Reading, read

__all__ = ["Reading", "read"]
