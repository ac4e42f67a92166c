"""Python that stands between other lines of a paste: a message, a log, a command. Statements that parse and that hold a call which says something.

People paste their error and add "my code:" below it. The lines are found by parsing, never by running.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from advisor.reading.pattern import pattern

CALLS = pattern(
    r"\bfrom_pretrained\(|\b[A-Z]\w{0,40}(?:Config|Arguments|Args|Trainer|Plugin|Strategy)\(|\b(?:FSDP|FullyShardedDataParallel|DistributedDataParallel|DDP|fully_shard|"
    r"DataLoader|Accelerator|get_peft_model|prepare_model_for_kbit_training|Linear4bit|deepspeed\.initialize|pipeline|LLM|Fabric)\(|"
    r"\boptim\.\w{1,30}\(|\.(?:backward|gradient_checkpointing_enable|half|bfloat16|cuda)\("
)
_STARTS = pattern(
    r"^(?:from\s+[\w.]+\s+import\s|import\s+\w|@\w|(?:async\s+)?(?:def|for|with)\s|class\s+\w+.{0,200}:|(?:if|while|try|else|elif|except|finally)\b.{0,300}:|"
    r"(?:return|del|assert)\s|"
    r"[A-Za-z_][\w.]*(?:\[[^\]\n]{0,80}\])?(?:\s*,\s*[A-Za-z_][\w.]*){0,6}\s*(?::\s*[\w.\[\], |]{1,80})?[-+*/]?=(?!=)\s*\S|[A-Za-z_][\w.]*\()"
)
_TRACE = pattern(r'^\s*File "|^Traceback \(most recent')
LONGEST = 400  # lines of one statement
MOST = 4_000  # lines that are looked at: a script, not a log
SCANNED = 3 * MOST  # lines in all that statements are sought in: an open bracket is followed for LONGEST lines and found to be none


def python_lines(text: str) -> list[tuple[int, int]]:
    """Spans of characters that are Python, none where no call in them says anything of a run or where all of it is code."""
    if not CALLS.search(text):
        return []
    lines = text.splitlines(keepends=True)[:MOST]
    places = [0]
    for line in lines:
        places.append(places[-1] + len(line))
    found: list[tuple[int, int]] = []
    for first, last in _statements(lines):
        if found and not "".join(lines[found[-1][1] : first]).strip():
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    spans = [(places[first], places[last]) for first, last in found if CALLS.search("".join(lines[first:last])) or last - first > 1]
    if not any(CALLS.search(text[start:end]) for start, end in spans) or sum(len(t.strip()) > 0 for t in _outside(text, spans)) == 0:
        return []
    return spans


def _statements(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line (exclusive) of each statement at the left margin that parses."""
    at = scanned = 0
    while at < len(lines) and scanned < SCANNED:
        line = lines[at]
        if not _STARTS.match(line) or (at and _TRACE.match(lines[at - 1])):
            at += 1
            continue
        end = _end(lines, at)
        scanned += (end or at + LONGEST) - at
        if end is None or not _parses("".join(lines[at:end])):
            at += 1
            continue
        yield at, end
        at = end


def _end(lines: list[str], at: int) -> int | None:
    """Where a statement ends: its brackets are closed, and what is indented below it belongs to it."""
    depth = 0
    for number in range(at, min(len(lines), at + LONGEST)):
        if number > at and depth <= 0 and not lines[number][:1].isspace() and lines[number].strip():
            continues = re.match(r"(?:else|elif|except|finally)\b|[)\]}]", lines[number])
            if continues is None:
                return number
        if number > at and depth <= 0 and not lines[number].strip() and not _indented_below(lines, number):
            return number
        bare = re.sub(r"#.*|'[^'\n]*'|\"[^\"\n]*\"", "", lines[number])
        depth += sum(bare.count(c) for c in "([{") - sum(bare.count(c) for c in ")]}")
    return len(lines) if depth <= 0 and len(lines) <= at + LONGEST else None


def _indented_below(lines: list[str], at: int) -> bool:
    below = next((line for line in lines[at + 1 : at + 4] if line.strip()), "")
    return below[:1].isspace()


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _outside(text: str, spans: list[tuple[int, int]]) -> Iterator[str]:
    place = 0
    for start, end in spans:
        yield text[place:start]
        place = end
    yield text[place:]
