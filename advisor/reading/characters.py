"""One alphabet for every reader: what a browser, an editor or a forum puts in place of a log's own characters is put back.

Quotes that a word processor curls, spaces that do not break, entities of HTML, full-width punctuation between Latin words: none of it was printed
by the program, and all of it stands between a reader and a frame or a figure. The number of lines stays as it is.
"""

from __future__ import annotations

import html
import json
import re

from advisor.reading.pattern import pattern

# Unicode's space separators (category Zs) and what stands for a quotation mark or an apostrophe in print
_SPACES = dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " ")
_QUOTES = {**dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033"), '"'), **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032"), "'")}
_SAME = str.maketrans({**_SPACES, **_QUOTES, "\u2026": "...", "\u200b": "", "\u200c": "", "\u2060": "", "\u00ad": ""})
_FULL_WIDTH = str.maketrans({"\uff1a": ": ", "\uff0c": ", ", "\uff08": " (", "\uff09": ") ", "\uff1b": "; ", "\uff1d": "="})
_CHINESE = pattern(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ENTITY = pattern(r"&(?:amp;){0,2}(?:lt|gt|quot|apos|nbsp|amp|#0?39|#0?34|#x0?2[27F]|#0?96|#x60|#0?6[02]);", re.IGNORECASE)
_GROUPED = pattern(  # a size with a comma for its point, or with its thousands parted
    r"(?<![\w.,'])(\d{1,3}(?:[,.'\u2019\u00a0\u202f]\d{3}(?!\d))+|\d{1,24})([.,]\d{1,2}(?!\d)|\.\d{3,9})?(?=\s?(?:[KMGT]i?B|[gm]i?b)\b)\s?([KMGTkmgt])"
)
_ESCAPED = pattern(r"(?<!\\)(\\{1,4})n\s{0,8}File \\{0,4}\"|File \\{1,4}\"[^\"\n]{1,300}\", line \d{1,7}, in [^\\\n]{1,200}(\\{1,4})n")
# Colab's tracebacks, copied from the page into Markdown: [/usr/lib/python3/x.py](https://localhost:8080/#) in f(x)
_LINKED_FILE = pattern(r"\[([\w./~@+-]{1,300}\.py)\]\(https?://[^\s()]{1,300}\)(?= in [\w<])")
_MESSAGE = ("log", "message", "msg", "textPayload", "MESSAGE", "line", "event")  # docker json-file, structlog, Google Cloud Logging, journald, Loki


def plain(text: str) -> str:
    """The text in the characters that programs print, the files of a traceback as paths where a notebook made links of them."""
    if "](http" in text:
        text = _LINKED_FILE.sub(r"\1", text)
    if "&" in text and ";" in text:
        text = _ENTITY.sub(_unescaped, text)
    if text.isascii():
        return _GROUPED.sub(_number, text) if "," in text or "'" in text else text
    text = _GROUPED.sub(_number, text).translate(_SAME)
    if any(mark in text for mark in "\uff1a\uff0c\uff08\uff09\uff1b\uff1d"):
        text = "\n".join(line if _CHINESE.search(line) else line.translate(_FULL_WIDTH) for line in text.split("\n"))
    return text


def broken(text: str) -> list[str]:
    """The lines of a traceback that was printed as the text of a string, ``repr`` or JSON, with its line breaks escaped; another line alone."""
    if "\\n" not in text or (found := _ESCAPED.search(text)) is None:
        return [text]
    at = found.start()
    lines = re.split(rf"(?<!\\){re.escape(found[1] or found[2])}n", text[:at] + re.sub(r"\\+(?=[\"'])", "", text[at:]))
    head = lines[0].find("Traceback (most recent call last)")
    return [*([lines[0][:head]] if head > 0 else []), lines[0][max(head, 0) :], *lines[1:]]


def _number(found: re.Match[str]) -> str:
    """A size as Python writes it: groups of three without what parts them, a point before the decimals; one that could be either as it stands."""
    whole, decimals = found[1], found[2] or ""
    groups = re.split(r"[,.'\u2019\u00a0\u202f]", whole)
    parts = set(re.findall(r"[,.'\u2019\u00a0\u202f]", whole))
    if len(parts) > 1 or any(len(group) != 3 for group in groups[1:]) or (parts == {"."} and not (decimals or len(groups) > 2)):
        return found[0]
    if decimals and decimals[0] in parts:  # "1.234,567.8": no number
        return found[0]
    if len(groups) == 2 and not decimals and parts == {","} and found[3][:1] in "GgTt":
        return found[0]  # 2,345 GB: of no card in thousands, of few with three decimals
    return "".join(groups) + decimals.replace(",", ".") + found[0][len(whole) + len(decimals) :]


def _unescaped(found: re.Match[str]) -> str:
    said = found[0]
    for _ in range(3):
        said = html.unescape(said)
    return said.replace("\u00a0", " ")


def message(text: str) -> str:
    """The line that a collector wrapped in an object of JSON; another line as it is. A config in one line has no such key alone with a text."""
    if not (text.startswith('{"') and text.endswith("}")) or len(text) > 20_000:
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    said = next((found[key] for key in _MESSAGE if isinstance(found.get(key), str)), None) if isinstance(found, dict) else None
    return text if said is None or not {"time", "timestamp", "stream", "level", "severity", "ts", "@timestamp"} & found.keys() else said.rstrip("\n")
