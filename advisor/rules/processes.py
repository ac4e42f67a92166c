"""Process tables: which processes on a card are ranks of the failing job."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.units import GIB, show

_DUPLICATE = pattern(r"Duplicate GPU detected", re.IGNORECASE)  # NCCL init.cc


def by_pid(evidence: Evidence) -> dict[int, set[int]]:
    """Cards on which each process id is seen."""
    cards: dict[int, set[int]] = defaultdict(set)
    for device in evidence.devices:
        for process in device.processes:
            if process.pid is not None and device.index is not None:
                cards[process.pid].add(device.index)
    return dict(cards)


def own_ranks(evidence: Evidence) -> str | None:
    """Whether several processes of one kind sit on one card while each also sits on its own: ranks with a second context."""
    cards = by_pid(evidence)
    doubled = [pid for pid, on in cards.items() if len(on) > 1]
    for device in evidence.devices:
        here = [p for p in device.processes if p.pid in doubled]
        if len(here) >= 2 and len(device.processes) >= 2:
            together = sum(p.used_bytes or 0 for p in here)
            return f"{len(here)} processes on GPU {device.index} also run on another card: ranks of one job, with {show(together)} on this card together"
    if any(_DUPLICATE.search(line.text) for line in evidence.lines):
        return "NCCL reports two ranks of this job on one device"
    return None


def crowded(evidence: Evidence) -> str | None:
    """Whether several processes of the same name and about the same size share a card while another card is empty."""
    empty = [d for d in evidence.devices if d.used_bytes is not None and d.used_bytes < GIB]
    for device in evidence.devices:
        names = Counter(p.name for p in device.processes if p.name)
        name, count = names.most_common(1)[0] if names else ("", 0)
        if count >= 2 and empty and "python" in name.lower():
            return f"{count} processes named {name} share GPU {device.index} while GPU {empty[0].index} is empty"
    return None


def same_gpu_in_errors(evidence: Evidence) -> str | None:
    """Whether failures of different ranks name the same card."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for failure in evidence.failures:
        if failure.rank is not None and failure.gpu is not None:
            ranks[failure.gpu].add(failure.rank)
    for gpu, who in ranks.items():
        others = [g for g in ranks if g != gpu]
        listed = max((len([p for p in f.processes if not p.own]) for f in evidence.failures if f.gpu == gpu), default=0)
        if len(who) >= 2 and (others or listed >= 1):
            return f"ranks {', '.join(map(str, sorted(who)[:4]))} all fail on GPU {gpu}"
    return None


def like_own(evidence: Evidence) -> int:
    """How many other processes on the failing card are each about as large as this one: the same program, several times."""
    failure = evidence.failure
    own = None if failure is None else failure.own_bytes or failure.reserved_bytes
    if failure is None or own is None or own <= GIB // 4:
        return 0
    return sum(0.5 <= p.used_bytes / own <= 2.0 for p in failure.processes if not p.own and p.used_bytes)


def rank_on_first(evidence: Evidence) -> str | None:
    """Whether a later rank fails on the first card among processes like itself: its own card would be another one."""
    failure, alike = evidence.failure, like_own(evidence)
    if failure is None or failure.gpu != 0 or not failure.rank or not alike:
        return None
    return f"rank {failure.rank} fails on GPU 0, beside {alike} processes as large as itself: ranks of the job that put something on the first card"
