"""Memory figures that logs print at a named point, in the forms of the frameworks and as people print them.

Sources: deepspeed ``runtime/utils.py`` see_memory_usage (divides by 1024^3, prints GB); verl ``utils/debug/performance.py`` log_gpu_memory_usage
(1024^3); axolotl ``utils/bench.py``; torchtune ``training/memory.py``; megatron-lm ``training/utils.py`` report_memory (1024^2, prints MB);
torchtitan ``components/metrics.py`` (memory: peak reserved); ms-swift ``memory(GiB)``; Hugging Face log dictionaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.evidence import Sample
from advisor.reading import figures, written_rows, xla
from advisor.reading.lines import Excerpt, LogLine
from advisor.reading.pattern import pattern as lazily
from advisor.units import GIB, MIB

MAX_SAMPLES = 2_000
_F = r"(-?\d{1,9}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?)"

_DEEPSPEED = lazily(rf"\bMA {_F} GB\s+Max_MA {_F} GB\s+CA {_F} GB\s+Max_CA {_F} GB")
_STAGE = lazily(r"see_memory_usage\]\s*(.{1,160})$")
_VERL = lazily(
    rf"^(.{{0,160}}?),? ?memory allocated \(GB\): {_F}(?:, memory reserved \(GB\): {_F})?(?:, device memory used/total \(GB\): {_F}/{_F})?", re.IGNORECASE
)
_AXOLOTL = lazily(rf"GPU memory usage ([\w ]{{1,80}}): {_F}GB(?: \(\+{_F}GB (?:cache|allocator\w*))?", re.IGNORECASE)
_TORCHTUNE_HEAD = lazily(r"Memory stats (after [\w ]{1,80}):", re.IGNORECASE)
_TORCHTUNE = lazily(rf"GPU peak memory (allocation|allocated|reserved|active): {_F} GiB", re.IGNORECASE)
_MEGATRON = lazily(
    rf"\(after (\d+) iterations\) memory \(MB\)\s*\|?\s*allocated: {_F}\s*\|\s*max allocated: {_F}\s*\|\s*reserved: {_F}(?:\s*\|"
    rf"\s*max reserved: {_F})?",
    re.IGNORECASE,
)
_TITAN = lazily(rf"\bmemory:\s*{_F}\s?GiB\({_F}%\)", re.IGNORECASE)
_SWIFT = lazily(rf"memory\(GiB\)['\"]?[:=]\s*['\"]?{_F}", re.IGNORECASE)
_PROMPT = lazily(r"^\s*(?:>>>|In ?\[\d+\]:)\s*(.{3,200})$")
_STEP = lazily(r"\b(?:global[_ ]?step|step|iter(?:ation)?|it)s?['\"]?\s*[:=\[/]?\s*(\d{1,9})\b(?!\.\d)(?!\s?[GMK]i?B\b)", re.IGNORECASE)
_BAR = lazily(r"\|\s*(\d{1,9})/(\d{1,9}) \[")
_RANK = lazily(r"^\s*\[?rank\s?:?\s?(\d{1,5})\b", re.IGNORECASE)


_OF_A_FAILURE = (
    "tried to allocate", "out of memory", "allocated by pytorch", "reserved by pytorch", "total by pytorch", "total capac", "memory in use",
    "already allocated",
)  # fmt: skip


def samples_of(text: Excerpt) -> list[Sample]:
    """The figures of one text, in order."""
    out: list[Sample] = []
    stage: dict[str, str] = {}
    for index, line in enumerate(text.lines):
        content = line.text
        if (m := _STAGE.search(content)) is not None and "MA " not in m[1]:
            stage[line.stream] = m[1].strip()
            continue
        if (m := _TORCHTUNE_HEAD.search(content)) is not None:
            stage[line.stream] = m[1].strip()
            continue
        for sample in _of_line(text, index, line, stage.get(line.stream, "")):
            out.append(sample)
        if len(out) >= MAX_SAMPLES:
            break
    return _joined(out + list(figures.columns(text)))[:MAX_SAMPLES]


def _of_line(text: Excerpt, index: int, line: LogLine, stage: str) -> Iterator[Sample]:
    content, where, rank = line.text, text.where(line), line.rank
    lowered = content.lower()
    if not any(word in lowered for word in ("mem", "alloc", "reserved", "peak", " ma ", "ma ", "vram", "gb", "gib")):
        return
    if any(words in lowered for words in _OF_A_FAILURE) or xla.STATS.match(content) is not None:
        return
    if (m := _DEEPSPEED.search(content)) is not None:
        yield Sample(where, stage or "see_memory_usage", None, rank, _gib(m[1]), _gib(m[3]), _gib(m[2]), _gib(m[4]))
    elif (m := _MEGATRON.search(content)) is not None:
        yield Sample(where, f"after {m[1]} iterations", int(m[1]), rank, _mib(m[2]), _mib(m[4]), _mib(m[3]), _mib(m[5]) if m[5] else None)
    elif (m := _VERL.search(content)) is not None:
        label = re.sub(r"^.*?\]?:?\s*(?=[A-Z])", "", m[1]).strip() or m[1].strip()
        yield Sample(where, label or "memory", _step(content), rank, _gib(m[2]), _gib(m[3]) if m[3] else None, device_used_bytes=_gib(m[4]) if m[4] else None)
    elif (m := _AXOLOTL.search(content)) is not None:
        allocated = _gib(m[2])
        cache = _gib(m[3]) if m[3] else None
        yield Sample(where, m[1].strip(), _step(content), rank, allocated, allocated + cache if allocated is not None and cache is not None else None)
    elif (m := _TORCHTUNE.search(content)) is not None:
        peak = _gib(m[2])
        kind = m[1].lower()
        yield Sample(
            where,
            stage or "peak",
            None,
            rank,
            peak_allocated_bytes=peak if kind.startswith("alloc") else None,
            peak_reserved_bytes=peak if kind == "reserved" else None,
        )
    elif (m := _TITAN.search(content)) is not None:
        yield Sample(where, "memory (peak reserved)", _step(content), rank, peak_reserved_bytes=_gib(m[1]))
    elif (m := _SWIFT.search(content)) is not None:
        yield Sample(where, "memory(GiB) (peak reserved)", _step(content), rank, peak_reserved_bytes=_gib(m[1]))
    elif row := list(written_rows.of_line(content, where, rank)):
        yield from row
    elif (m := _PROMPT.match(content)) is not None:
        yield from _answer(text, index, m[1], where, rank)
    else:
        yield from _free_form(content, where, rank)


def _answer(text: Excerpt, index: int, asked: str, where: str, rank: int | None) -> Iterator[Sample]:
    """An interpreter's answer to ``torch.cuda.memory_allocated() / 2**30``, on the line below."""
    if index + 1 >= len(text.lines) or (noun := re.search(r"(max_)?memory_(allocated|reserved)\(|max_memory_(allocated)", asked)) is None:
        return
    answer = re.match(r"^\s*(?:Out\[\d+\]: )?(\d{1,15}(?:\.\d{1,12})?)\s*$", text.lines[index + 1].text)
    if answer is None:
        return
    divisor = (
        2**30
        if re.search(r"2\s?\*\*\s?30|1024\s?\*\*\s?3|1<<30|1024\s?\*\s?1024\s?\*\s?1024", asked)
        else MIB
        if re.search(
            r"2\s?\*\*\s?20|"
            r"1024\s?\*\*\s?2",
            asked,
        )
        else 10**9
        if "1e9" in asked
        else 1
    )
    yield _named(where, asked.strip()[:80], None, rank, noun[2] or "allocated", "max" in noun[0], round(float(answer[1]) * divisor))


def _free_form(content: str, where: str, rank: int | None) -> Iterator[Sample]:
    """``step 100 allocated 8.4 GiB``, ``iter 0 memory_allocated 0.26 GiB reserved 0.29``, ``'memory/max_mem_allocated(gib)': 9.8``, ``gpu mem 7.6 GB``."""
    found = {(f.what, f.peak): f.bytes for f in figures.figures(content)}
    if not found:
        return
    yield Sample(
        where,
        _label(content),
        _step(content),
        rank if rank is not None else _rank(content),
        allocated_bytes=found.get(("allocated", False)),
        reserved_bytes=found.get(("reserved", False)),
        peak_allocated_bytes=found.get(("allocated", True)),
        peak_reserved_bytes=found.get(("reserved", True)),
        device_used_bytes=found.get(("card", False)),
    )


def _rank(content: str) -> int | None:
    m = _RANK.search(content)
    return int(m[1]) if m is not None else None


def _named(where: str, label: str, step: int | None, rank: int | None, what: str, peak: bool, value: int) -> Sample:
    if what == "reserved":
        return Sample(where, label, step, rank, reserved_bytes=None if peak else value, peak_reserved_bytes=value if peak else None)
    return Sample(where, label, step, rank, allocated_bytes=None if peak else value, peak_allocated_bytes=value if peak else None)


def _step(content: str) -> int | None:
    if (m := _STEP.search(content)) is not None or (m := _BAR.search(content)) is not None:
        return int(m[1])
    return None


def _label(content: str) -> str:
    return re.sub(r"\s+", " ", content).strip()[:100]


def _gib(number: str) -> int:
    return max(round(float(number) * GIB), 0)


def _mib(number: str) -> int:
    return max(round(float(number) * MIB), 0)


def _joined(samples: list[Sample]) -> list[Sample]:
    """Figures of one named point that stand on several lines (torchtune) as one sample."""
    out: list[Sample] = []
    for sample in samples:
        last = out[-1] if out else None
        if last is not None and last.label == sample.label and sample.label.startswith("after ") and last.rank == sample.rank and last.step is None:
            merged = {
                name: getattr(last, name) if getattr(last, name) is not None else getattr(sample, name)
                for name in ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")
            }
            out[-1] = Sample(last.where, last.label, last.step, last.rank, **merged)
        else:
            out.append(sample)
    return out
