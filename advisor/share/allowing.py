"""What a plan may do in a link: ``allow=keep:!(exact,full),changes:2,margin:2GiB,without:!(galore)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec.structs import replace

from advisor.share.failure_reading import LARGEST
from advisor.share.form import ALLOW, MAX_TICKS, Link
from advisor.share.notation import NotationError, read_mapping, write_mapping
from advisor.share.opening import parameters_of
from advisor.share.writing import SAFE
from advisor.units import gib, read_size

if TYPE_CHECKING:
    from advisor.planner.constraints import Constraints

KEPT = {"full": "keep_full_training", "exact": "keep_exact", "libraries": "no_new_dependency", "cards": "keep_hardware"}
MOST_CHANGES = 99


def with_allowed(shared: Link, allow: Constraints, margin_bytes: int | None) -> Link:
    """The link with what the plan may do; the same link where nothing is asked of it."""
    said = written(allow, margin_bytes)
    return replace(shared, query=f"{shared.query}&{ALLOW}={quote(said, safe=SAFE)}") if said else shared


def written(allow: Constraints, margin_bytes: int | None) -> str:
    """The parameter's value; empty where nothing is asked."""
    said: dict[str, Any] = {}
    if keep := [name for name, field in KEPT.items() if getattr(allow, field)]:
        said["keep"] = keep
    if allow.most_changes is not None:
        said["changes"] = min(allow.most_changes, MOST_CHANGES)  # no plan has so many
    if margin_bytes is not None:
        said["margin"] = f"{gib(margin_bytes, 3):g}GiB"
    if allow.exclude:
        said["without"] = sorted(allow.exclude)
    return write_mapping(said)


def allowed_of(query: str | Mapping[str, str]) -> tuple[Constraints, int | None] | None:
    """What a link lets its plan do, and the bytes to leave free; ``None`` where it says nothing, or what cannot be read or kept to."""
    text = parameters_of(query).get(ALLOW)
    if text is None:
        return None
    from advisor.planner.constraints import Constraints
    from advisor.techniques import all_techniques

    try:
        said = read_mapping(text)
        keep, without, changes = said.pop("keep", []), said.pop("without", []), said.pop("changes", None)
        size = read_size(str(said["margin"])) if "margin" in said else None
        wrong = ("margin" in said) != (size is not None and 0 <= size.bytes <= LARGEST) or set(said) - {"margin"}
        names = [str(name) for name in without[:MAX_TICKS]]
        if wrong or set(keep) - set(KEPT) or set(names) - set(all_techniques()) or not (changes is None or _counts(changes)):
            return None
    except (NotationError, TypeError):
        return None
    switches = {field: name in keep for name, field in KEPT.items()}
    return Constraints(most_changes=changes, exclude=frozenset(names), **switches), None if size is None else size.bytes


def _counts(changes: object) -> bool:
    return isinstance(changes, int) and not isinstance(changes, bool) and 1 <= changes <= MOST_CHANGES
