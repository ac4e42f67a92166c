"""A measured peak in a link: what somebody read on a device, told as told, since whoever opens the link cannot compute it again."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from advisor.share.form import MEASURED, Link
from advisor.share.notation import NotationError, read_list, write_list
from advisor.share.opening import parameters_of
from advisor.share.writing import SAFE
from advisor.units import gib, read_size

MAX_DEVICE = 80  # characters
MAX_SOFTWARE, MAX_VERSION = 6, 40  # items such as "torch 2.6.0", and characters of each
CHANGED, AS_IT_WAS = "changed", "as-it-was"


class Measured(Struct, frozen=True):
    """Bytes that PyTorch had allocated at the peak, on which device, whether the run had the ticked changes, and under which versions."""

    bytes: int
    device: str
    changed: bool
    software: tuple[str, ...] = ()  # "torch 2.6.0"


def with_measured(shared: Link, found: Measured | None) -> Link:
    """The link with what was measured of it."""
    if found is None:
        return shared
    versions = [item[:MAX_VERSION] for item in found.software[:MAX_SOFTWARE]]
    said = write_list([f"{gib(found.bytes, 2):.2f}GiB", found.device[:MAX_DEVICE], CHANGED if found.changed else AS_IT_WAS, *versions])
    return replace(shared, query=f"{shared.query}&{MEASURED}={quote(said, safe=SAFE)}")


def measured_of(query: str | Mapping[str, str]) -> Measured | None:
    """What a link says was measured; ``None`` where it says nothing, or nothing that can be read."""
    text = parameters_of(query).get(MEASURED)
    if text is None:
        return None
    try:
        size, device, which, *software = (str(part) for part in read_list(text))
    except (NotationError, ValueError):
        return None
    read = read_size(size)
    if read is None or read.bytes <= 0 or which not in (CHANGED, AS_IT_WAS):
        return None
    return Measured(read.bytes, device[:MAX_DEVICE], which == CHANGED, tuple(item[:MAX_VERSION] for item in software[:MAX_SOFTWARE]))
