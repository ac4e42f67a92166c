"""Bytes as text and back: the only place that formats or reads a size.

GiB is 2**30 everywhere, as PyTorch's own messages print it (c10 ``format_size``: two decimals except for plain bytes).
"""

from __future__ import annotations

import math
import re

from msgspec import Struct

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_BINARY = {"b": 1, "byte": 1, "bytes": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "pib": 1024**5, "eib": 1024**6}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"^\s*(\d{1,24}(?:\.\d{1,9})?)\s*([a-zA-Z]{1,5})?\s*$")


class Size(Struct, frozen=True):
    """A size as it was printed: ``bytes`` and half a unit of the last printed digit, ``tolerance`` (bytes)."""

    bytes: int
    tolerance: int


def read_size(text: str, *, default_unit: str = "b") -> Size | None:
    """Read ``"14.20 GiB"``, ``"954.00 MiB"``, ``"512 bytes"``; ``None`` where it is no size.

    ``kb``/``mb``/``gb`` are read as decimal, as drives and clouds print them. The tolerance is half of the last printed digit.
    """
    match = _SIZE.match(text)
    if match is None:
        return None
    digits, unit = match.group(1), (match.group(2) or default_unit).lower()
    scale = _BINARY.get(unit) or _DECIMAL.get(unit)
    if scale is None:
        return None
    decimals = len(digits.partition(".")[2])
    value = float(digits) * scale
    if not math.isfinite(value):
        return None
    return Size(round(value), math.ceil(scale * 0.5 * 10**-decimals) if scale > 1 else 0)


def show(size_bytes: float) -> str:
    """``14.2 GiB``: one decimal in GiB, whole MiB and KiB below; the sign kept."""
    sign = "-" if size_bytes < 0 else ""
    magnitude = abs(size_bytes)
    for scale, unit, digits in ((TIB, "TiB", 2), (GIB, "GiB", 1), (MIB, "MiB", 0), (KIB, "KiB", 0)):
        if magnitude >= scale:
            return f"{sign}{magnitude / scale:,.{digits}f} {unit}"
    return f"{sign}{magnitude:.0f} B"


def signed(size_bytes: float) -> str:
    """``+3.1 GiB`` or ``-3.1 GiB``: a difference."""
    return show(size_bytes) if size_bytes < 0 else f"+{show(size_bytes)}"


def gib(size_bytes: float, digits: int = 4) -> float:
    """Bytes as a number of GiB, rounded for JSON and charts."""
    return round(size_bytes / GIB, digits)


def show_time(seconds: float) -> str:
    """``1.4 s``, ``35 min``, ``7.5 h``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def show_count(count: float) -> str:
    """``8.03 B``, ``125 M``: a number of parameters or tokens."""
    for scale, unit, digits in ((1e12, "T", 2), (1e9, "B", 2), (1e6, "M", 0), (1e3, "k", 0)):
        if abs(count) >= scale:
            return f"{count / scale:.{digits}f} {unit}"
    return f"{count:.0f}"
