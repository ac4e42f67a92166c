"""What a device held when the snapshot was taken: by place, by size, by pool, and how torn its free memory is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from advisor.reading.snapshot.sites import Sites
from advisor.reading.snapshot.structure import Segment

MAX_SITES, MAX_SIZES, MAX_POOLS, MAX_MAP = 40, 400, 40, 64

Live = tuple[int, int, list[Any]]  # requested bytes, bytes taken, frames


def held(segments: Sequence[Segment], sites: Sites) -> dict[str, Any]:
    """Sums of one device in bytes, its largest places, its pools and its fragmentation map."""
    sums: Counter[str] = Counter()
    pools: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    holes: Counter[int] = Counter()
    live: list[Live] = []
    largest = 0
    rows: list[dict[str, Any]] = []
    for segment in segments:
        own: Counter[str] = Counter()
        widest = count = 0
        for block in segment.blocks:
            own[block.state] += block.size
            if block.state == "allocated":
                own["requested"] += block.requested
                live.append((block.requested, block.size, block.frames))
            elif block.state == "free":
                widest = max(widest, block.size)
                count += 1
        used = own["allocated"] + own["pending"]
        sums.update({"reserved": segment.size, "allocated": own["allocated"], "active": used, "requested": own["requested"], "segments": 1})
        sums["blocks"] += len(segment.blocks)
        if used:  # what is free in a partly used segment cannot be returned to the driver (non-releasable, inactive_split)
            sums["inactive_split"] += own["free"]
            sums["holes"] += count
            for block in segment.blocks:
                if block.state == "free":
                    holes[1 << max(block.size.bit_length() - 1, 0)] += 1
        else:
            sums["releasable"] += own["free"]
        if segment.pool is None:
            largest = max(largest, widest)
        else:
            pools[segment.pool].update({"reserved": segment.size, "allocated": own["allocated"], "free": own["free"]})
        rows.append({"size": segment.size, "allocated": used, "free": own["free"], "largest_free": widest, "holes": count, "large": segment.large,
                     "pool": list(segment.pool) if segment.pool else None, "expandable": segment.expandable})  # fmt: skip
    rows.sort(key=lambda row: (-row["free"] if row["allocated"] else 0, -row["size"]))
    return {
        **{key: sums[key] for key in ("reserved", "allocated", "active", "requested", "segments", "blocks", "inactive_split", "holes", "releasable")},
        "largest_free": largest,
        "expandable": any(s.expandable for s in segments),
        "pools": [{"id": list(key), **{k: pools[key][k] for k in ("reserved", "allocated", "free")}} for key in sorted(
            pools, key=lambda p: -pools[p]["reserved"])[:MAX_POOLS]],
        "hole_sizes": [[size, number] for size, number in sorted(holes.items(), reverse=True)],
        "map": rows[:MAX_MAP],
        **by_site(live, sites),
    }  # fmt: skip


def by_site(live: Iterable[Live], sites: Sites) -> dict[str, Any]:
    """What is alive by place and part, and by size: ``sizes`` are ``[requested bytes, blocks, part]``, the most bytes first."""
    places: dict[tuple[str, str], list[int]] = {}
    sizes: Counter[tuple[int, str]] = Counter()
    for requested, size, frames in live:
        place, part = sites.of(frames)
        sums = places.setdefault((place, part), [0, 0])
        sums[0] += size
        sums[1] += 1
        sizes[requested, part] += 1
    ordered = sorted(places.items(), key=lambda item: (-item[1][0], item[0]))
    most = sorted(sizes.items(), key=lambda item: (-item[0][0] * item[1], item[0]))
    parts: Counter[str] = Counter()
    for (_, part), (size, _) in places.items():
        parts[part] += size
    return {
        "sites": [{"site": place, "part": part, "bytes": size, "blocks": count} for (place, part), (size, count) in ordered[:MAX_SITES]],
        "sites_left_out": max(0, len(ordered) - MAX_SITES),
        "parts": dict(parts.most_common(20)),
        "sizes": [[size, count, part] for (size, part), count in most[:MAX_SIZES]],
    }
