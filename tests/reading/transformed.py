"""Ways in which one and the same text reaches a reader: what a terminal, a launcher, a logger, a forum or a mail does to the lines of a paste.

Each is a function of a text. None changes what the text says, so nothing that is read of it may change: neither frames nor counters nor the cause.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator

_FRAME = re.compile(r'^\s*File "[^"]+", line \d+')
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception)\b")
_LABEL = re.compile(r"^(?:\[rank\d+\]:|\([\w ]+ pid=\d+[^)]*\)) ?")
_HEAD = re.compile(r"^(?:\[rank\d+\]:|\([\w ]+ pid=\d+[^)]*\))? ?Traceback \(most recent call last\):")
TORCHRUN, RAY, WORKER, STAMP = "[rank0]: ", "(WorkerDict pid=4242) ", "(Worker pid=77) ", "2025-03-04 11:12:13,456 "


def _lines(change: Callable[[int, str], str | None]) -> Callable[[str], str]:
    """A change of each line (its number from 0, itself); ``None`` drops it."""

    def whole(text: str) -> str:
        return "\n".join(new for number, line in enumerate(text.split("\n")) if (new := change(number, line)) is not None)

    return whole


def _bare(line: str) -> str:
    return _LABEL.sub("", line)


def _of_a_traceback(text: str) -> list[bool]:
    """Which lines belong to a traceback, its error line included."""
    inside, out = False, []
    for raw in text.split("\n"):
        line = _bare(raw)
        begins = bool(_HEAD.match(raw) or _FRAME.match(line))
        raised = bool(_RAISED.match(line))
        inside = begins or (inside and (line.startswith(" ") or raised))
        out.append(inside)
        inside = inside and not raised
    return out


def _traceback_only(change: Callable[[str, str], str | None]) -> Callable[[str], str]:
    """A change of the lines of tracebacks: (line without its label, the line)."""

    def whole(text: str) -> str:
        marks = _of_a_traceback(text)
        new = ((change(_bare(line), line) if mark else line) for line, mark in zip(text.split("\n"), marks, strict=True))
        return "\n".join(line for line in new if line is not None)

    return whole


def _put(prefix: str, on: Callable[[str], bool]) -> Callable[[str], str]:
    """The prefix before the lines of tracebacks that ``on`` names, and before no other."""
    return _traceback_only(lambda bare, _: prefix + bare if on(bare) else bare)


def _headless(bare: str, line: str) -> str | None:
    return None if _HEAD.match(line) else bare


def _put_headless(prefix: str, on: Callable[[str], bool]) -> Callable[[str], str]:
    return _traceback_only(lambda bare, line: None if _HEAD.match(line) else prefix + bare if on(bare) else bare)


def _cut_in_the_middle(text: str) -> str:
    """Outer frames replaced by dots, the last three kept; a text with two tracebacks as it is."""
    lines, marks = text.split("\n"), _of_a_traceback(text)
    frames = [n for n, line in enumerate(lines) if marks[n] and _FRAME.match(_bare(line))]
    if len(frames) < 5 or sum(bool(_RAISED.match(_bare(line))) for line in lines) > 1:
        return text
    return "\n".join([*lines[: frames[1]], "  ...", *lines[frames[-3] :]])


def _wrapped(width: int) -> Callable[[str], str]:
    return lambda text: "\n".join(piece for line in text.split("\n") for piece in ([line[i : i + width] for i in range(0, len(line), width)] or [""]))


def _coloured(_: int, line: str) -> str:
    if _FRAME.match(_bare(line)):  # Python 3.13's own traceback colours
        return re.sub(r'(File )("[^"]+")(, line )(\d+)(, in )(.+)', "\\1\x1b[35m\\2\x1b[0m\\3\x1b[35m\\4\x1b[0m\\5\x1b[35m\\6\x1b[0m", line)
    return f"\x1b[1;31m{line}\x1b[0m" if line else line


def _ipython(text: str) -> str:
    """IPython's form: ``File path:12, in f(args)``, numbered code with an arrow, the class above and the message below."""
    return _frames_as(
        text,
        lambda path, number, name, code: [f"File {path}:{number}, in {name}(self, *args)", f"    {max(int(number) - 1, 0)} # ...", f"--> {number} {code}", ""],
    )


def _ipython_old(text: str) -> str:
    """IPython before 8: ``path in f(args)`` and the arrow's number."""
    return _frames_as(
        text, lambda path, number, name, code: [f"{path} in {name}(self, *args)", f"    {max(int(number) - 1, 0)} # ...", f"---> {number} {code}", ""]
    )


def _rich(text: str) -> str:
    """rich's boxes, as Typer programs and axolotl print them."""

    def boxed(path: str, number: str, name: str, code: str) -> list[str]:
        inside = [
            f"{path}:{number} in {name}",
            "",
            f"  {max(int(number) - 1, 0):>4} │   # ...",
            f"❱ {number:>4} │   {code}",
            f"  {int(number) + 1:>4} │   # ...",
        ]
        return [f"│ {line:<96} │" for line in inside]

    return _frames_as(text, boxed, "╭──────────────── Traceback (most recent call last) ─────────────────╮", "╰" + "─" * 98 + "╯")


def _frames_as(text: str, form: Callable[[str, str, str, str], list[str]], head: str = "", end: str = "") -> str:
    lines, marks = text.split("\n"), _of_a_traceback(text)
    out: list[str] = []
    number = 0
    while number < len(lines):
        bare = _bare(lines[number])
        if marks[number] and _HEAD.match(lines[number]):
            out.append(head or "-" * 75)
        elif marks[number] and (m := re.match(r'\s*File "([^"]+)", line (\d+)(?:, in (.+))?', bare)):
            code = ""
            if number + 1 < len(lines) and marks[number + 1] and not _FRAME.match(_bare(lines[number + 1])) and _bare(lines[number + 1]).startswith(" "):
                number += 1
                code = _bare(lines[number]).strip()
            out += form(m[1], m[2], m[3] or "<module>", code)
        elif marks[number] and re.match(r"^\s*[\^~]+\s*$", bare):
            pass
        else:
            out += [end, bare] if end and marks[number] and _RAISED.match(bare) else [lines[number]]
        number += 1
    return "\n".join(out)


def _prefixed(prefix: str) -> Callable[[str], str]:
    """A collector's prefix before every line of a log."""
    return _lines(lambda _, line: prefix + line if line else line)


def _as_a_string(text: str) -> str:
    """Each traceback within one line, as a program prints the text of an exception that it caught."""
    out: list[str] = []
    inside: list[str] = []
    for line, mark in zip([*text.split("\n"), ""], [*_of_a_traceback(text), False], strict=True):
        if mark:
            inside.append(_bare(line))
        if inside and (not mark or _RAISED.match(_bare(line))):
            joined = "\n".join(inside)
            out.append(f"worker died: {json.dumps(joined)[1:-1]}" if len(inside) > 1 else joined)
            inside = []
        if not mark:
            out.append(line)
    return "\n".join(out[:-1])


def _another_home(text: str) -> str:
    return re.sub(r"/(?:home/\w+|root|workspace|usr/lib/python3/dist-packages|opt/[\w/.-]*site-packages)/", _moved, text)


def _moved(found: re.Match[str]) -> str:
    installed = found[0].endswith(("dist-packages/", "site-packages/"))
    return "/data/shared/team x/envs/llm/lib/python3.11/site-packages/" if installed else "/mnt/nfs/users/o.person/work dir/"


def _entities(text: str) -> str:
    return html.escape(text)


def _smart(text: str) -> str:
    return re.sub(r'(?<=\s)"', "\u201c", text).replace('"', "\u201d").replace("'", "\u2019").replace("...", "\u2026")


def _all(_: str) -> bool:
    return True


def _is_raised(bare: str) -> bool:
    return bool(_RAISED.match(bare))


def _not_raised(bare: str) -> bool:
    return not _is_raised(bare)


def _code(bare: str) -> bool:
    return not _is_raised(bare) and not _FRAME.match(bare) and not bare.startswith("Traceback")


def _every_third(bare: str) -> bool:
    return len(bare) % 3 == 0


TRACEBACKS: dict[str, Callable[[str], str]] = {
    "no labels": _put("", _all),
    **{
        f"{name} {which}": _put(prefix, on)
        for name, prefix in (("torchrun", TORCHRUN), ("ray", RAY), ("worker", WORKER), ("stamp", STAMP))
        for which, on in (("on all", _all), ("on the error alone", _is_raised), ("on all but the error", _not_raised), ("on some", _every_third))
    },
    "torchrun on all but code": _put(TORCHRUN, lambda bare: not _code(bare)),
    "headless": _traceback_only(_headless),
    "headless, torchrun on the error": _put_headless(TORCHRUN, _is_raised),
    "headless, torchrun on the frames": _put_headless(TORCHRUN, _not_raised),
    "headless, ray on the error": _put_headless(RAY, _is_raised),
    "headless, ray on the frames": _put_headless(RAY, _not_raised),
    "colours": _lines(_coloured),
    "no indentation": _traceback_only(lambda bare, _: bare.lstrip()),
    "no indentation, headless": _traceback_only(lambda bare, line: None if _HEAD.match(line) else bare.lstrip()),
    "wrapped at 80": _wrapped(80),
    "wrapped at 120": _wrapped(120),
    "quoted": _lines(lambda _, line: f"> {line}".rstrip()),
    "quoted twice": _lines(lambda _, line: f"> > {line}".rstrip()),
    "quoted without space": _lines(lambda _, line: f">{line}"),
    "commented": _traceback_only(lambda _, line: f"# {line}"),
    "in a list": _lines(lambda n, line: f"- {line}" if n == 0 else f"  {line}"),
    "a list of lines": _traceback_only(lambda _, line: f"* {line.strip()}"),
    "numbered lines": _lines(lambda n, line: f"{n + 1:>4}  {line}"),
    "fenced": lambda text: f"```\n{text}\n```",
    "indented by four": _lines(lambda _, line: f"    {line}" if line else line),
    "blank lines between": _lines(lambda _, line: f"{line}\n"),
    "as a string": _as_a_string,
    "ipython": _ipython,
    "ipython 7": _ipython_old,
    "rich": _rich,
}
CUT: dict[str, Callable[[str], str]] = {"cut in the middle": _cut_in_the_middle}
LINES: dict[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "narrow no-break spaces in sizes": lambda text: re.sub(r"(\d) (?=[GM]i?B)", "\\1\u202f", text),
    "decimal commas": lambda text: re.sub(r"(\d)\.(\d{1,2}) (?=[GM]i?B)", r"\1,\2 ", text),
    "tabs": _lines(lambda _, line: re.sub(r"^ {4}", "\t", line)),
    "smart quotes": _smart,
    "entities": _entities,
    "quote entities": lambda text: text.replace('"', "&quot;").replace("'", "&#39;"),
    "another home": _another_home,
    "zero-width spaces": lambda text: text.replace("/", "/\u200b"),
    "full-width punctuation": lambda text: text.replace(": ", "\uff1a").replace(", ", "\uff0c"),
    "emoji": _lines(lambda n, line: f"\U0001f525 {line}" if n == 0 else line),
    "trailing spaces": _lines(lambda _, line: f"{line}   "),
    "loguru": _prefixed("2025-03-04 11:12:13.456 | ERROR    | __main__:main:42 - "),
    "absl": _prefixed("E0304 11:12:13.456789 140234567890123 train.py:42] "),
    "logging": _prefixed("2025-03-04 11:12:13,456 - ERROR - train - "),
    "basic config": _prefixed("ERROR:root:"),
    "rich handler": _prefixed("[03/04/25 11:12:13] ERROR    "),
    "level alone": _prefixed("[ERROR] "),
    "bracketed time and level": _prefixed("[2025-03-04 11:12:13,456][train][ERROR] - "),
    "transformers": _prefixed("[ERROR|trainer.py:2310] 2025-03-04 11:12:13,456 >> "),
    "docker compose": _prefixed("trainer-1  | "),
    "kubernetes": _prefixed("2025-03-04T11:12:13.456789012Z stderr F "),
    "docker json": _lines(lambda _, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-03-04T11:12:13.456789012Z"}) if line else line),
    "stern": _prefixed("train-job-0 pytorch "),
    "wandb": _prefixed("wandb: "),
    "slurm label": _prefixed("0: "),
    "journal": _prefixed("Mar 04 11:12:13 node7 python[4242]: "),
    "cloud time": _prefixed("2025-03-04T11:12:13.456Z "),
    "github actions": _prefixed("2025-03-04T11:12:13.4567890Z "),
    "sagemaker": _prefixed("[1,mpirank:0,algo-1]<stderr>:"),
    "open mpi": _prefixed("[1,0]<stderr>:"),
    "accelerate tee": _prefixed("[default0]:"),
    "progress before": lambda text: "  0%|          | 0/100 [00:00<?, ?it/s]\r  3%|▎         | 3/100 [00:09<04:51,  3.01s/it]" + text,
}
ALL = {**TRACEBACKS, **CUT, **LINES}


def subsets(text: str, prefix: str, chosen: Callable[[int], bool]) -> str:
    """The prefix before those lines of the text's tracebacks whose number is chosen."""
    numbers: Iterator[int] = iter(range(10**9))
    return _traceback_only(lambda bare, _: prefix + bare if chosen(next(numbers)) else bare)(text)
