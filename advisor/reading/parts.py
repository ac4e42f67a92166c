"""One paste that holds several things: the configs in it, each with all else blanked, so that line numbers stay true.

People paste everything at once: a snippet, a JSON config, an error; or a whole forum post with fenced blocks. A JSON object that starts a
line, a run of YAML and a block between fences are read for themselves; what is left is read as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.reading.embedded import MAX_BLOCK, MAX_BLOCKS
from advisor.reading.handoff import read_config
from advisor.reading.pattern import pattern
from advisor.reading.snippets import python_lines

FILES = (".json", ".jsonc", ".json5", ".yaml", ".yml", ".toml", ".py", ".sh", ".bash", ".ipynb", ".cfg", ".slurm", ".sbatch")  # one thing each
_OPENS = pattern(r'^\{(?=\s*(?://[^\n]*\n\s*|#[^\n]*\n\s*)*")', re.MULTILINE)  # JSON's keys are in double quotes; the dicts that trainers print are not
_FENCE = pattern(r"^[ \t]*(```|~~~)[^\n`]*$", re.MULTILINE)
_YAML = pattern(r"^(?:[A-Za-z_][\w.\-]{0,80}:(?:[ \t].{0,400})?|[ \t]+[\w.\-\"']{1,80}:(?:[ \t].{0,400})?|[ \t]*- .{1,400}|[ \t]*#.{0,400})$")
LEAST_KEYS = 3  # top-level keys of a YAML block, and the facts that make it one: prose and logs have colons too
MOST_LINES = 3  # objects of one line each: more of them are a log in JSON, no configs


def parts(name: str, text: str) -> tuple[list[str], str]:
    """The parts of a paste and the rest, each with as many lines as the paste; no parts where it is one thing."""
    if name.lower().endswith(FILES) or text.lstrip().startswith("{"):
        return [], text
    spans = sorted([*_fenced(text), *_objects(text), *_settings(name, text)])
    kept: list[tuple[int, int]] = []
    for start, end in spans:
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    kept = kept[:MAX_BLOCKS]
    found = [_only(text, start, end) for start, end in kept]
    rest = _without(text, kept)
    code = python_lines(rest)
    if code:  # its statements are one script, whatever stands between them
        between = [(end, start) for (_, end), (start, _) in zip([(0, 0), *code], [*code, (len(rest), 0)], strict=True)]
        found.append(_without(rest, between))
        rest = _without(rest, code)
    return found, rest


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """The text with the spans blanked, and as many lines."""
    out, place = [], 0
    for start, end in spans:
        out += [text[place:start], "\n" * text.count("\n", start, end)]
        place = end
    return "".join((*out, text[place:]))


def _only(text: str, start: int, end: int) -> str:
    return "\n" * text.count("\n", 0, start) + text[start:end] + "\n" * text.count("\n", end)


def _fenced(text: str) -> Iterator[tuple[int, int]]:
    """What stands between two fences."""
    opened: tuple[str, int] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = (match[1], match.end())
        elif match[1] == opened[0]:
            if match.start() - opened[1] <= MAX_BLOCK:
                yield opened[1], match.start()
            opened = None


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """JSON objects that start a line, from their bracket to its partner."""
    found = []
    until = 0
    for match in _OPENS.finditer(text):
        if match.start() < until:
            continue
        end = _closed(text, match.start())
        if end is not None:
            found.append((match.start(), end))
            until = end
        if len(found) > 4 * MAX_BLOCKS:
            break
    single = [span for span in found if "\n" not in text[slice(*span)]]
    yield from found if len(single) <= MOST_LINES else (span for span in found if span not in single)


def _settings(name: str, text: str) -> Iterator[tuple[int, int]]:
    """Runs of lines that are YAML, where a config reader understands them."""
    start = place = keys = tried = 0
    for line in (*text.splitlines(keepends=True), ""):
        if line.strip() and _YAML.match(line.rstrip("\r\n")):
            keys += not line[0].isspace() and line[0] not in "-#"
            place += len(line)
            continue
        if keys >= LEAST_KEYS and tried < MAX_BLOCKS and place - start <= MAX_BLOCK:
            tried += 1
            found = read_config(name, text[start:place])
            if found is not None and not found.problem and len(found.facts) >= LEAST_KEYS:
                yield start, place
        place += len(line)
        start, keys = place, 0


def _closed(text: str, start: int) -> int | None:
    """The place behind the bracket that closes the one at ``start``; strings are passed over."""
    depth, quoted, index = 0, False, start
    last = min(len(text), start + MAX_BLOCK)
    while index < last:
        char = text[index]
        if quoted:
            if char == "\\":
                index += 1
            elif char in '"\n':
                quoted = False
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return None
