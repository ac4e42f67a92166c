"""Process tables: which processes on a card are ranks of the failing job."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.units import GIB, MIB, show

_DUPLICATE = pattern(r"Duplicate GPU detected", re.IGNORECASE)  # NCCL init.cc


def of_desktop(name: str) -> bool:
    """Whether a process draws the screen: a window server, a shell or a browser, which nobody counts as a neighbour of a training."""
    return _DESKTOP.search(name) is not None


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


_DESKTOP = pattern(r"Xorg|gnome|kwin|compiz|firefox|chrome|Xwayland|explorer\.exe|dwm\.exe", re.IGNORECASE)
CONTEXT = (
    100 * MIB,
    1600 * MIB,
)  # what a process that computes elsewhere leaves on a card: a CUDA context, from Pascal's 150 MiB to 1.5 GiB with eager kernels


def contexts(evidence: Evidence) -> str | None:
    """Beside one large process a card bears others of the same program that are all as small as a context: ranks that touched the first card."""
    for device in evidence.devices:
        sized = sorted(((p.used_bytes, p.name) for p in device.processes if p.used_bytes and p.name and not _DESKTOP.search(p.name)), reverse=True)
        if len(sized) < 3:
            continue
        (largest, name), rest = sized[0], sized[1:]
        small = [size for size, other in rest if other == name and CONTEXT[0] <= size <= CONTEXT[1]]
        if len(small) >= 2 and len(small) == len(rest) and max(small) <= 1.2 * min(small) and largest > 2 * max(small):
            return (
                f"{len(small)} more processes of the same program are on GPU {device.index if device.index is not None else '?'} with {show(small[0])} each, "
                "a bare context: ranks whose card is another one"
            )
    return None


ALIKE = 0.03  # of the larger: contexts of one program on one card differ by a few MiB
NEXT = 8  # pids a process: a launcher forks its workers one after the other, and threads of those that began take numbers of the same row
LEAST_ALIKE = 3  # processes: two of one size may be chance


def alike_in_error(evidence: Evidence) -> str | None:
    """The other processes that the error lists are all of one small size: contexts of the job's other ranks, on a card that is not theirs."""
    failure = evidence.failure
    others = [p.used_bytes for p in failure.processes if not p.own and p.used_bytes] if failure is not None else []
    if len(others) < LEAST_ALIKE or max(others) - min(others) > ALIKE * max(others) or max(others) > 2 * CONTEXT[1]:
        return None
    return f"{len(others)} other processes hold {show(max(others))} each on this card: contexts of other ranks, which have a card of their own"


def started_together(evidence: Evidence) -> str | None:
    """The error lists three or more other processes with pids next to each other, no mere contexts: one launch put all its ranks on this card."""
    failure = evidence.failure
    others = [p for p in failure.processes if not p.own and p.pid is not None and (p.used_bytes or 0) > 2 * CONTEXT[1]] if failure is not None else []
    pids = sorted({p.pid for p in others if p.pid is not None})
    if len(pids) < LEAST_ALIKE or pids[-1] - pids[0] > NEXT * len(pids):
        return None
    return f"{len(pids)} other processes on this card have pids next to each other ({pids[0]} to {pids[-1]}): they were started together"


def all_here(evidence: Evidence) -> str | None:
    """Several processes of one program, started together and about as large as each other, sit on one card and on no other."""
    if len({d.index for d in evidence.devices if d.processes}) != 1:
        return None
    for device in evidence.devices:
        own = [p for p in device.processes if p.used_bytes and p.pid is not None and p.name]
        groups: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
        for p in own:
            groups[p.name].append((p.pid or 0, p.used_bytes or 0))
        for together in groups.values():
            pids, sizes = [pid for pid, _ in together], sorted(size for _, size in together)
            if len(sizes) > LEAST_ALIKE:
                sizes = sizes[1:]  # the one that ran out was still filling
            if len(together) >= 2 and max(pids) - min(pids) <= NEXT * len(together) and min(sizes) >= GIB and max(sizes) <= 1.25 * min(sizes):
                return f"{len(together)} processes that were started together hold about {show(sizes[0])} each on GPU {device.index}"
    return None


_DEVICE_OF_RANK = pattern(r"\brank\W{0,3}(\d{1,4})\b[^\n]{0,60}?\b(?:cuda|gpu|device)\W{0,3}(?:cuda:)?(\d{1,2})\b(?!\s?[GM]i?B)", re.IGNORECASE)
# each process sees one card, which it calls 0: Ray's workers, Slurm's binding, a variable for each rank
_ONE_SEEN = pattern(r"CUDA_VISIBLE_DEVICES\W{1,3}\d{1,2}(?![\d,])|--gpus?-per-task|--gpu-bind|\bray(?:::|\.|\b)|\bWorkerDict\b", re.IGNORECASE)
NODE = 8  # cards of a node at most: ranks further apart than that may rightly print the same index


def same_device_printed(evidence: Evidence) -> str | None:
    """Whether ranks of one node print the same device as theirs; nothing where each is shown one card only."""
    if any(_ONE_SEEN.search(line.text) for line in evidence.lines):
        return None
    found: dict[int, set[int]] = defaultdict(set)
    for line in evidence.lines:
        if (m := _DEVICE_OF_RANK.search(line.text)) is not None and "ried to allocate" not in line.text:
            found[int(m[2])].add(int(m[1]))
    for device, ranks in found.items():
        near = [(a, b) for a in sorted(ranks) for b in sorted(ranks) if a < b < a + min(NODE, 4)]
        if near and not any(ranks & others for index, others in found.items() if index != device):
            return f"ranks {near[0][0]} and {near[0][1]} both print device {device}"
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
