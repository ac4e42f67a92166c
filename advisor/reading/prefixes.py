"""What launchers and loggers put before a line: rank labels, worker names, times. Taken off, and kept as rank, stream and time."""

from __future__ import annotations

import calendar
import re

from msgspec import Struct

from advisor.reading.pattern import pattern as lazily

_ANSI = lazily(r"\x1b(?:\[[0-9;?:]{0,20}[ -/]?[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])|\x9b[0-9;?]{0,20}[@-~]")
_ANSI_LOST = lazily(r"(?<![\w\[])\[(?:0|1|2|3[0-7]|4[0-7]|9[0-7]|[01];3[0-7]|38;5;\d{1,3})?m(?=\S|\s|$)")  # escapes whose ESC a copy dropped
_CONTROL = lazily(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# torch.distributed.run and torch >= 2.4 print "[rank3]: "; Megatron "[Rank 3]"; Lightning "rank: 3"
_RANK = lazily(r"\[rank[ :_-]?(\d{1,6})\]:?(?: |(?=\t)|$|(?=[\[(]))|^rank[ _]?(\d{1,6})\s?[:|] ?", re.IGNORECASE)
_DEFAULT = lazily(r"\[default(\d{1,5})\]:")  # torchrun --tee / --role default: local rank
_MPI = lazily(r"\[\d{1,4},(\d{1,6})\]<std(?:out|err|diag)>:\s?")
_RAY = lazily(r"\(([\w .:/-]{0,80}?)\s*,?\s*(?:rank=(\d{1,6})\s*,?\s*)?pid=(\d{1,10})(?:,\s*ip=[^)]{1,60})?\)\s?", re.IGNORECASE)
_RANK_IN_NAME = lazily(r"(?:rank|worker|tp|dp)[_ ]?(\d{1,6})\b", re.IGNORECASE)
_VLLM = lazily(r"\((?:VllmWorker(?:Process)?|Worker|EngineCore)(?:_?(?:TP|DP|PP)?(\d{1,5}))?(?:_(?:TP|DP|PP|EP)\d{1,5}){0,3}\)\s?")
_LABEL = lazily(r"\s{0,4}(\d{1,5}): ?")  # srun --label
_LOCATION = lazily(
    r"(?:\[[\w./-]{1,80}\.(?:py|cc|cpp|cu|h):\d{1,6}\](?:(?: (?:rank|Rank) ?\d+)?:)?|[\w./-]{1,80}\.(?:py|cc|"
    r"cpp):\d{1,6}[\]:]) "
)  # a logger's own place
_K8S = lazily(r"std(?:out|err) [FP] ")

_REPEATED = lazily(r" {2,}|Traceback|[\w.]{0,80}(?:Error|Exception)\b|During handling|The above")
_ISO = lazily(r"[\[(]?(\d{4})[-/](\d{2})[-/](\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?(?:Z|[+-]\d{2}:?\d{2})?[\])]?[,:]?\s?")
_US = lazily(r"[\[(]?(\d{2})/(\d{2})/(\d{4}) (\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?[\])]?(?: - |\s)?")
_GLOG = lazily(r"\[?([IWEF])(\d{2})(\d{2}) (\d{2}):(\d{2}):(\d{2})\.(\d{3,9}) +(?:\d{1,20} )?(?=[\w./<])")
_SHORT = lazily(r"(?:INFO|WARNING|ERROR|DEBUG)? ?(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))? ")  # vLLM: "INFO 05-07 12:00:00 [file.py:12] "
_CLOCK = lazily(r"\[?(\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,6}))?\]? (?=\S)")
_SYSLOG = lazily(r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d{2}):(\d{2}):(\d{2}) [\w.<>-]{1,80} ")
_KERNEL = lazily(r"\[ {0,8}(\d{1,9}\.\d{6})\] ")
_MONTHS = {m: i + 1 for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])}


# A traceback that was pasted as a comment or a quotation, each line of it behind the mark, with a launcher's number or not
_QUOTED_HEAD = lazily(r"\s{0,8}(?:#|//|>) ?(?:\d{1,5}: (?=\[rank))?(?=(?:\[rank\d{1,6}\]: ?)?(?:Traceback \(most|\s{0,8}File \"[^\"]{1,400}\", line \d))")
_QUOTED_LINE = lazily(r"\s{0,8}(?:#|//|>) ?(?:\d{1,5}: (?=\[rank))?(?=\S|\s{2,}\S)")


class Prefix(Struct, frozen=True):
    """What stood before a line. ``stream`` keeps interleaved writers apart: the rank, else the process."""

    rank: int | None
    stream: str
    stamp: float | None  # seconds; comparable only within one file
    text: str


def strip_control(text: str) -> str:
    """Without ANSI codes, other control characters, byte-order marks and direction marks. Tabs stay."""
    if "\x1b" in text or "\x9b" in text:
        text = _ANSI.sub("", text)
    elif "m" in text and "[" in text:
        text = _ANSI_LOST.sub("", text)
    return _CONTROL.sub("", text) if _CONTROL.search(text) else text


def unquoted(text: str, quoting: bool) -> tuple[str, bool]:
    """A line without the mark of a comment where a traceback's lines stand behind such marks; and whether the next may be one of them (``quoting``)."""
    if (m := (_QUOTED_LINE if quoting else _QUOTED_HEAD).match(text)) is None:
        return text, quoting and not text.strip()
    return text[m.end() :], True


def split(text: str, *, labelled: bool = False) -> Prefix:
    """Take prefixes off, outermost first, at most six of them. ``labelled``: the whole file bears ``srun --label`` numbers."""
    rank: int | None = None
    stream = ""
    stamp: float | None = None
    if labelled and (m := _LABEL.match(text)):
        rank, stream, text = int(m[1]), f"r{int(m[1])}", text[m.end() :]
    if text[:1].isspace() and (bare := text.lstrip())[:1] in "[(" and (_RANK.match(bare) or _RAY.match(bare) or _MPI.match(bare)) is not None:
        text = bare  # a list or a quotation that is indented as a whole
    for _ in range(6):
        head = text[:1]
        if not head or head.isspace():
            break
        if head in "[(rR":
            m = _RANK.match(text) or _MPI.match(text) or _DEFAULT.match(text)
            if m is not None:
                rank = int(next(g for g in m.groups() if g is not None))
                stream, text = f"r{rank}", text[m.end() :]
                continue
        if head == "(":
            m = _RAY.match(text)
            if m is not None:
                named = m[2] or ((_RANK_IN_NAME.search(m[1]) or [None, None])[1] if m[1] else None)
                rank = rank if named is None else int(named)
                stream, text = stream or f"p{m[3]}", text[m.end() :]
                continue
            m = _VLLM.match(text)
            if m is not None:
                rank = rank if m[1] is None else int(m[1])
                stream, text = stream or m[0].strip(), text[m.end() :]
                continue
        found = _time(text)
        if found is None and stamp is not None and (m := _LOCATION.match(text)) is not None and _REPEATED.match(text, m.end()):
            text = text[m.end() :]  # a traceback that a logger prints line by line
            break
        if found is None:
            if head == "s" and (m := _K8S.match(text)):
                text = text[m.end() :]
                continue
            break
        stamp, end = found if stamp is None else (stamp, found[1])
        text = text[end:]
    return Prefix(rank, stream, stamp, text)


def _time(text: str) -> tuple[float, int] | None:
    head = text[0]
    if head in "[(0123456789":
        if m := _ISO.match(text):
            return _seconds(int(m[1]), int(m[2]), int(m[3]), int(m[4]), int(m[5]), int(m[6]), m[7]), m.end()
        if m := _US.match(text):
            return _seconds(int(m[3]), int(m[1]), int(m[2]), int(m[4]), int(m[5]), int(m[6]), m[7]), m.end()
        if m := _KERNEL.match(text):
            return float(m[1]), m.end()
    if head in "[IWEF" and (m := _GLOG.match(text)):
        return _seconds(2000, int(m[2]), int(m[3]), int(m[4]), int(m[5]), int(m[6]), m[7]), m.end()
    if head in "IWED0123456789" and (m := _SHORT.match(text)):
        return _seconds(2000, int(m[1]), int(m[2]), int(m[3]), int(m[4]), int(m[5]), m[6]), m.end()
    if head in "[0123456789" and (m := _CLOCK.match(text)):
        return _seconds(2000, 1, 1, int(m[1]), int(m[2]), int(m[3]), m[4]), m.end()
    if head in "JFMASOND" and (m := _SYSLOG.match(text)):
        return _seconds(2000, _MONTHS[m[1]], int(m[2]), int(m[3]), int(m[4]), int(m[5]), None), m.end()
    return None


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None) -> float:
    days = calendar.timegm((year, min(max(month, 1), 12), min(max(day, 1), 28), hour, minute, second)) + max(day - 28, 0) * 86400
    return days + (float(f"0.{fraction}") if fraction else 0.0)
