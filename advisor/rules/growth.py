"""Series of memory figures over steps: what grows, what stays, and what falls apart before the failure.

Samples are what readers found at named points of a log. A series is the samples with the same label, in order of step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from msgspec import Struct

from advisor.evidence import Evidence, Sample
from advisor.reading.pattern import pattern
from advisor.units import GIB, MIB, show

LEAST_POINTS = 3
_FIGURE = pattern(r"(\d{1,7}(?:\.\d+)?)\s*(GiB|GB|MiB|MB)\b", re.IGNORECASE)
_FIGURES_IN_LABEL = pattern(r"\s*\d+(?:\.\d+)?\s*")
_SIZE_IN_LABEL = pattern(r"\d\s*(?:GiB|GB|MiB|MB)\b", re.IGNORECASE)
# a place inside one pass: what is held rises there in every step, and falls with it
_WITHIN = pattern(
    r"\b(?:backward|forward|recomput\w+)\b[^\n]{0,40}(?:%|\b(?:layers?|blocks?|modules?|stage|of the)\b)|"
    r"\b(?:layers?|blocks?)\W{0,3}(?:\d|#)[^\n]{0,40}\b(?:backward|forward)\b|"
    r"\b(?:half ?way|part) (?:through|of) the (?:backward|forward)\b",
    re.IGNORECASE,
)
_PROGRESS = pattern(r"\b(\d{1,8})/(\d{1,8}) \[")
_STEP = pattern(  # a count of steps is a whole number without a unit: "before the first step: 32.8 GiB" gives a size
    r"(?:\bstep|\biter(?:ation)?|global_step)['\"]?\s*[:=]?\s*(\d{1,9})\b(?!\.\d)(?!\s?(?:[GMK]i?B|s|ms|sec\w*)\b)", re.IGNORECASE
)
_AFTER = pattern(r"\b(?:after|for) (?:about |some |around |roughly |~ ?)?(\d[\d,]{1,9}) (?:steps|iterations|iters|updates|batches)\b", re.IGNORECASE)
_OF_LENGTH = pattern(r"\b(?:len|length|longest|tokens?|seq|shape|size)\b", re.IGNORECASE)  # a line that shows what the peak follows
_UNITS = {"gib": GIB, "gb": GIB, "mib": MIB, "mb": MIB}  # torch scripts divide by 2**30 whatever they print behind it
READABLE = 40  # characters of a label; a longer one is a whole line with its numbers cut out
LEAST_RISE = 0.10  # of the last value: below that it is a workspace warming up


class Series(Struct, frozen=True):
    """Figures of one label over steps, bytes."""

    label: str
    where: str
    steps: tuple[int, ...]
    values: tuple[int, ...]

    @property
    def rises(self) -> bool:
        """Whether it never falls and rises clearly from its first to its last point."""
        pairs = pairwise(self.values)
        return all(b >= a for a, b in pairs) and self.values[-1] - self.values[0] > max(LEAST_RISE * self.values[-1], 32 * MIB)

    @property
    def even(self) -> bool:
        """Whether it rises by about the same for each step: something is kept at every step."""
        return self.rises and self._evenly

    def even_until(self, step: int) -> bool:
        """The same of what it comes to at a later step, if it goes on as it went: figures of the first steps rise little by themselves."""
        ahead = self.values[-1] + self.slope * max(0, step - self.steps[-1])
        return all(b > a for a, b in pairwise(self.values)) and ahead - self.values[0] > max(LEAST_RISE * ahead, 32 * MIB) and self._evenly

    @property
    def _evenly(self) -> bool:
        slopes = [(v2 - v1) / max(1, s2 - s1) for s1, s2, v1, v2 in zip(self.steps, self.steps[1:], self.values, self.values[1:], strict=False)]
        mean = sum(slopes) / len(slopes)
        return all(abs(s - mean) <= 0.5 * mean for s in slopes)

    @property
    def slope(self) -> float:
        """Bytes a step from first to last point."""
        return (self.values[-1] - self.values[0]) / max(1, self.steps[-1] - self.steps[0])

    @property
    def flat(self) -> bool:
        """Whether it stays within a tenth of its largest value."""
        return max(self.values) - min(self.values) <= LEAST_RISE * max(self.values)


def of(evidence: Evidence, figure: Callable[[Sample], int | None]) -> tuple[Series, ...]:
    """Series with at least three points, by label and rank."""
    groups: dict[tuple[str, int | None], list[tuple[int, int, str]]] = {}
    for number, sample in enumerate(evidence.samples):
        value = figure(sample)
        if value is not None:
            groups.setdefault((_FIGURES_IN_LABEL.sub("#", _named(sample.label)), sample.rank), []).append(
                (sample.step if sample.step is not None else number, value, sample.where)
            )
    if not groups and figure is _allocated_of:
        if "printed-series" not in evidence.noted:
            evidence.noted["printed-series"] = _printed(evidence)
        groups = evidence.noted["printed-series"]
    out = []
    for (label, _), points in groups.items():
        if len(points) >= LEAST_POINTS:
            out.append(Series(label.replace("#", " ").strip(), points[-1][2], tuple(p[0] for p in points), tuple(p[1] for p in points)))
    return tuple(out)


def _named(label: str) -> str:
    """A label up to its first figure: what a line says after it need not be said each time."""
    end = _SIZE_IN_LABEL.search(label)
    return label if end is None else label[: end.end()]


def allocated(evidence: Evidence) -> tuple[Series, ...]:
    """Series of allocated bytes (not of peaks)."""
    return of(evidence, _allocated_of)


def _allocated_of(sample: Sample) -> int | None:
    return sample.allocated_bytes


def _printed(evidence: Evidence) -> dict[tuple[str, int | None], list[tuple[int, int, str]]]:
    """Lines of one template that print a step and one memory figure, where no reader took them for samples."""
    groups: dict[tuple[str, int | None], list[tuple[int, int, str]]] = {}
    for line in evidence.lines:
        figures, step = _FIGURE.findall(line.text), _STEP.search(line.text)
        if len(figures) == 1 and step is not None and "mem" in line.text.lower():
            size = round(float(figures[0][0]) * _UNITS[figures[0][1].lower()])
            groups.setdefault((_FIGURES_IN_LABEL.sub("#", line.text), line.rank), []).append((int(step.group(1)), size, line.where))
    return groups


def reserved(evidence: Evidence) -> tuple[Series, ...]:
    """Series of reserved bytes."""
    return of(evidence, lambda s: s.reserved_bytes if s.reserved_bytes is not None else s.peak_reserved_bytes)


def peaks(evidence: Evidence) -> tuple[Series, ...]:
    """Series of peak allocated bytes."""
    return of(evidence, lambda s: s.peak_allocated_bytes)


def growing(evidence: Evidence) -> str | None:
    """The sentence where allocated bytes at one point of the step, or their maximum, rise evenly with the steps; else ``None``.

    The maximum of a steady run stands still after the first steps: one that rises by as much at each step follows something that is kept.
    """
    for series in (*allocated(evidence), *(s for s in peaks(evidence) if not _OF_LENGTH.search(s.label))):
        if series.even and not _steps_differ(series) and not _WITHIN.search(series.label):
            span = f"{show(series.values[0])} to {show(series.values[-1])} over {series.steps[-1] - series.steps[0]:,} steps"
            named = series.label if 0 < len(series.label) <= READABLE else "the memory that is printed with each step"
            return f"{named} rises from {span}, about {show(series.slope)} each"
    return None


def in_backward(evidence: Evidence) -> tuple[Sample, Sample] | None:
    """The first and the last of the figures that are printed at places of one backward pass, where they rise; one before the pass counts as its start."""
    found: list[Sample] = []
    before: Sample | None = None
    for sample in evidence.samples:
        if sample.allocated_bytes is None:
            continue
        if "backward" in sample.label.lower() and (_WITHIN.search(sample.label) or "before" not in sample.label.lower()):
            found.append(sample)
        elif not found:
            before = sample
    within = [s for s in found if _WITHIN.search(s.label)]
    if not within:
        return None
    points = [*([before] if before is not None else []), *within]
    values = [s.allocated_bytes or 0 for s in points]
    rises = len(points) >= 2 and all(b >= a for a, b in pairwise(values)) and values[-1] >= 1.2 * values[0]
    return (points[0], points[-1]) if rises else None


_EVALUATES = pattern(r"\b(?:valid\w*|evaluat\w*|eval|val|test(?:ing)?|predict\w*|inference)\b", re.IGNORECASE)


def in_evaluation(evidence: Evidence) -> str | None:
    """The sentence where allocated bytes rise evenly from one evaluation batch to the next; else ``None``."""
    for series in allocated(evidence):
        if series.even and not _steps_differ(series) and _EVALUATES.search(series.label):
            return f"{show(series.values[0])} to {show(series.values[-1])} over {series.steps[-1] - series.steps[0]:,} evaluation batches ({series.where})"
    return None


_MICRO = pattern(r"\bmicro[ _-]?batch(?:es)?\b", re.IGNORECASE)


def within_update(evidence: Evidence) -> str | None:
    """The sentence where allocated bytes rise evenly from micro batch to micro batch of one optimizer step; else ``None``."""
    for series in allocated(evidence):
        if series.even and not _steps_differ(series) and _MICRO.search(series.label):
            return f"it rises from micro batch to micro batch, before any optimizer step ({series.where})"
    return None


_CLEANED = pattern(
    r"\b(?:fail\w*|OOM\w*|caught|retr(?:y|ying|ied)|except\w*|after (?:del\b|deleting|gc|empty_?cache|clean\w*|clear\w*|freeing|the (?:error|failure)))|"
    r"\b(?:del \w+|gc\.collect|empty_cache)\b",
    re.IGNORECASE,
)
LEFT = 0.5  # of the card, still allocated after a failed try: what a try leaves by itself is nothing
_RUN = pattern(r"\b(?:run|trial|fold|experiment|attempt|try|round|session|sweep|seed) ?#?(\d{1,4})\b", re.IGNORECASE)


def left_behind(evidence: Evidence) -> str | None:
    """The sentence where most of the card stays allocated after a failed try or a clean-up that should have given it back."""
    capacity = evidence.failure.capacity_bytes if evidence.failure is not None else None
    least = min((s.allocated_bytes for s in evidence.samples if s.allocated_bytes is not None), default=0)
    for sample in evidence.samples:
        held = sample.allocated_bytes
        if held is None or not _CLEANED.search(sample.label):
            continue
        if held >= (LEFT * capacity if capacity else 4 * GIB) and held >= 2 * least:
            return f"{show(held)} stay allocated after that ({sample.where}: {sample.label[:60]})"
    return None


def between_runs(evidence: Evidence) -> str | None:
    """The sentence where what is allocated rises with the number of the run, trial or fold that a line names."""
    found: dict[int, tuple[int, str]] = {}
    for sample in evidence.samples:
        if sample.allocated_bytes is not None and (named := _RUN.search(sample.label)) is not None:
            found.setdefault(int(named[1]), (sample.allocated_bytes, sample.where))
    values = [found[n][0] for n in sorted(found)]
    if len(values) < 2 or any(b <= a for a, b in pairwise(values)) or values[-1] - values[0] < GIB // 2:
        return None
    return f"from run {min(found)} to run {max(found)} what is allocated rises from {show(values[0])} to {show(values[-1])} ({found[max(found)][1]})"


FILLS = 0.25  # of what is held at the end, from which on what came step by step is no workspace that warms up


def fills(evidence: Evidence) -> str | None:
    """What is kept of each step is most of what is held at the end: no part of one step is why it ended."""
    for series in allocated(evidence) or peaks(evidence):
        if not series.even or _steps_differ(series) or _WITHIN.search(series.label):  # what is even rises, so that its last value is above zero
            continue
        share = (series.values[-1] - series.values[0]) / series.values[-1]
        if share >= FILLS:
            ahead = series.values[-1] + series.slope
            capacity = evidence.failure.capacity_bytes if evidence.failure is not None else None
            if (missing := _missing(evidence)) is not None and series.values[-1] - series.values[0] > KEPT_OVER_MISSING * missing:
                return f"{show(series.values[-1] - series.values[0])} came step by step, and {show(missing)} more would have been enough"
            if capacity is not None and ahead > 0.9 * capacity:
                return f"{share:.0%} of what is held at step {series.steps[-1]:,} came step by step, and one more step fills the card"
    return None


KEPT_OVER_MISSING = 2  # times: half of what was kept would have been room enough


def _missing(evidence: Evidence) -> int | None:
    """What the failed request lacked, bytes; ``None`` where the text does not say, or room was there and in pieces."""
    failure = evidence.failure
    if failure is None or failure.requested_bytes is None or failure.free_bytes is None or failure.requested_bytes <= failure.free_bytes:
        return None
    return failure.requested_bytes - failure.free_bytes


def growing_card(evidence: Evidence) -> str | None:
    """The same of what the card shows in use: less telling, because the allocator's cache keeps what one large batch once needed."""
    last = last_step(evidence) or 0
    for series in of(evidence, lambda s: s.device_used_bytes):
        if not _steps_differ(series) and series.even_until(last):
            return (
                f"what the card shows in use rises from {show(series.values[0])} to {show(series.values[-1])} over {series.steps[-1] - series.steps[0]:,} steps"
            )
    return None


def _steps_differ(series: Series) -> bool:
    """Whether the steps are not in order: figures of different points, not of one."""
    return any(b <= a for a, b in pairwise(series.steps))


def rise_within_step(evidence: Evidence) -> tuple[int, str] | None:
    """The largest rise of allocated bytes between two figures of one line or of neighbouring samples, and how it reads."""
    best: tuple[int, str] | None = None
    samples = [s for s in evidence.samples if s.allocated_bytes is not None]
    for before, after in pairwise(samples):
        rise = abs((after.allocated_bytes or 0) - (before.allocated_bytes or 0))
        if best is None or rise > best[0]:
            best = (
                rise,
                f"{show(min(before.allocated_bytes or 0, after.allocated_bytes or 0))} to {show(max(before.allocated_bytes or 0, after.allocated_bytes or 0))}",
            )
    for line in evidence.lines:
        if "alloc" not in line.text.lower():
            continue
        figures = [round(float(number) * _UNITS[unit.lower()]) for number, unit in _FIGURE.findall(line.text)]
        if len(figures) == 2 and (best is None or abs(figures[0] - figures[1]) > best[0]):
            best = (abs(figures[0] - figures[1]), f"{show(min(figures))} to {show(max(figures))} in {line.where}")
    return best


_COUNTED = pattern(r"^\W{0,4}(?:step|iter(?:ation)?)?\W{0,4}(\d{1,8})\s?/\s?(\d{1,9})\]?[\s:,]", re.IGNORECASE)


def steps_shown(evidence: Evidence) -> list[int]:
    """The steps that a log's lines begin with (``[ 1000/1000000] time: ..``), in order; empty where it prints none."""
    return [int(m[1]) for line in evidence.lines if (m := _COUNTED.search(line.text)) is not None and int(m[1]) <= int(m[2])]


def last_step(evidence: Evidence) -> int | None:
    """The last step that a log shows before the failure: from samples and from progress bars (``128/1560 [``, as tqdm prints them)."""
    if "last-step" not in evidence.noted:
        evidence.noted["last-step"] = _last_step(evidence)
    found: int | None = evidence.noted["last-step"]
    return found


def _last_step(evidence: Evidence) -> int | None:
    steps = [s.step for s in evidence.samples if s.step is not None]
    for line in evidence.lines:
        steps += [int(done) for done, total in _PROGRESS.findall(line.text) if int(done) < int(total)]
        steps += [int(n) for n in _STEP.findall(line.text)]
        steps += [int(n.replace(",", "")) for n in _AFTER.findall(line.text)]
    return max(steps, default=None)


def steady_floor(evidence: Evidence) -> str | None:
    """Whether the same figure stands in each of several log lines while another figure of the line varies."""
    rows = [(line.where, [float(n) for n, _ in _FIGURE.findall(line.text)]) for line in evidence.lines]
    rows = [(where, figures) for where, figures in rows if len(figures) >= 2]
    if len(rows) < LEAST_POINTS or len({len(f) for _, f in rows}) > 1:
        return None
    columns = list(zip(*(f for _, f in rows), strict=True))
    steady = [c for c in columns if max(c) - min(c) <= 0.02 * max(c)]
    varied = [c for c in columns if max(c) > 1.3 * min(c)]
    if steady and varied:
        return f"from step to step one figure stays at {steady[0][0]:g} while another goes from {min(varied[0]):g} to {max(varied[0]):g} ({rows[-1][0]})"
    return None
