"""A probe's stream of births and deaths, thinned to what an eye can follow: bytes by part along one step, and what was just born or died."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from advisor.ledger import PARTS

MOST = 160  # moments that a chart shows: more are not told apart on a screen


class Frame(Struct, frozen=True):
    """A moment of the step: its phase, bytes alive by part, and the largest tensor that was born or died since the frame before."""

    phase: str
    parts: Mapping[str, int]
    change: str
    change_bytes: int  # negative for a death

    @property
    def bytes(self) -> int:
        """Bytes alive, all parts."""
        return sum(self.parts.values())

    def to_json(self) -> list[Any]:
        """Compact, for a file."""
        return [self.phase, dict(self.parts), self.change, self.change_bytes]


def frames(stream: Mapping[str, Any], most: int = MOST) -> tuple[Frame, ...]:
    """The last step of a stream (``advisor probe --timeline``) in at most ``most`` frames; every phase's beginning and largest moment is one.

    Raises:
        KeyError, TypeError: it is no such stream.
    """
    total, phases = stream["allocated"], [p for p in stream["phases"] if p["step"] == stream["last_step"]]
    start = phases[0]["from"]
    ends = [p["from"] for p in phases[1:]] + [len(total)]
    shown = {start, len(total) - 1}
    for phase, end in zip(phases, ends, strict=True):
        if phase["from"] < end:
            shown |= {phase["from"], max(range(phase["from"], end), key=total.__getitem__), end - 1}
    every = max(1, (len(total) - start) // max(1, most - len(shown)))
    at = sorted(shown | set(range(start, len(total), every)))
    names = [next(p["phase"] for p in reversed(phases) if p["from"] <= index) for index in at]
    return tuple(_framed(stream["storages"], at, names))


def _framed(lives: Sequence[Mapping[str, Any]], at: Sequence[int], names: Sequence[str]) -> Iterator[Frame]:
    events = [(life["born"], 1, life) for life in lives] + [(life["died"], -1, life) for life in lives if life["died"] is not None]
    events.sort(key=lambda event: event[0])
    alive: dict[str, int] = {}
    done = 0
    for now, phase in zip(at, names, strict=True):
        touched: dict[int, tuple[int, Mapping[str, Any]]] = {}
        while done < len(events) and events[done][0] <= now:
            _, sign, life = events[done]
            alive[life["part"]] = alive.get(life["part"], 0) + sign * life["bytes"]
            net = touched.get(life["id"], (0, life))[0] + sign  # born and dead again between two frames: nothing to see
            touched[life["id"]] = (net, life)
            done += 1
        sign, largest = max(touched.values(), key=lambda t: abs(t[0]) * t[1]["bytes"], default=(0, {}))
        change = _named(largest) if sign and now != at[0] else ""
        ordered = {part: alive[part] for part in PARTS if alive.get(part)}
        yield Frame(phase, ordered, change, sign * largest["bytes"] if change else 0)


def _named(life: Mapping[str, Any]) -> str:
    shape = f" [{' x '.join(f'{n:,}' for n in life['shape'])}]" if life["shape"] else ""
    name = life["name"] or f"{life['module'] or life['phase']}: {str(life['operator']).removeprefix('aten::')}"
    return f"{name.partition('#')[0]}{shape} {life['dtype']}".rstrip()


def of_json(frames: Sequence[Sequence[Any]]) -> tuple[Frame, ...]:
    """Frames from a file."""
    return tuple(Frame(phase, parts, change, size) for phase, parts, change, size in frames)
