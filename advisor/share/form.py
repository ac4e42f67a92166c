"""The form of a link: its version, its bounds, and what is never in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

VERSION = 1
MAX_LINK = 2_000  # characters of the query: what chat clients and proxies carry without cutting
MAX_READ = 20_000  # of a query that is read back: far above any that is issued
MAX_PARAMETERS = 400
MAX_TICKS = 60
# version: what turns a link of that version into the next one's parameters. Every form issued is in tests/links.txt.
UPGRADES: Mapping[int, Any] = {}
NEVER = frozenset({"version", "name"})  # name is free text of the user's
TICKS = "ticks"  # ids of the changes that are ticked, where they are not the plan's
MEASURED = "measured"  # what somebody measured of this run: allocated bytes at the peak, the device, and whether the run had the ticked changes
ALLOW = "allow"  # what the plan may do, where its reader said so
OF_PAGES = frozenset({"v", "sample", "embed", TICKS, MEASURED, ALLOW})  # what a page reads itself


class Link(Struct, frozen=True):
    """A query, what was left out of it and why, and whether it is short enough for an address."""

    query: str
    left_out: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it is short enough to be given as an address; else it is offered as a file."""
        return len(self.query) <= MAX_LINK

    @property
    def parameters(self) -> dict[str, str]:
        """The link as a mapping, for a page that sets its own address; empty where it is too long for one."""
        return dict(parse_qsl(self.query, keep_blank_values=True)) if self.fits else {}
