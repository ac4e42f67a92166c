"""``advisor diagnose FILES… | -``: anything that a person has of a failed run → causes and a plan."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from advisor.cli import UserError
from advisor.commands import allowed, files, options, output

if TYPE_CHECKING:
    from advisor.reading import Reading

MAX_FILES = 400  # of a folder, in order of name; a run of 256 ranks keeps one log each
MAX_STDIN = 64 * 1024 * 1024

Item = tuple[str, "bytes | str | Path"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="error texts, logs, configs, scripts, nvidia-smi output, folders, or one link; - reads standard input"
    )
    options.add_json(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for an issue")
    form.add_argument("--html", action="store_true", help="print one self-contained page")
    form.add_argument("--chat", action="store_true", help="print six lines, for a chat")
    parser.add_argument("--link", action="store_true", help="print the query of a link that brings this diagnosis back, and nothing else")
    parser.add_argument("--strict", action="store_true", help="exit with 1 also when it is tight, or when a copy or a fallback was found")
    parser.add_argument("--fewer", action="store_true", help="also the fewest of these cards that would do, with which changes and at what time of a step")
    allowed.add(parser)
    options.add_overrides(parser)
    parser.add_argument(
        "--seen", action="append", default=[], metavar="WHAT", help="what a second try or a question showed, as the report names it, e.g. seen-batch-1-fails"
    )


def run(args: argparse.Namespace) -> int:
    """Read, diagnose, print; the exit code is the verdict's."""
    from advisor.diagnosis import diagnose_reading
    from advisor.reading import read
    from advisor.stating import StatingError, state

    forms = [f"--{name}" for name in ("json", "markdown", "html", "chat", "link") if getattr(args, name)]
    if len(forms) > 1:
        raise UserError(f"{' and '.join(forms)} are {len(forms)} forms of one report; ask for one")
    stated = options.overrides(args)
    reading = _of_link(args.files) or read(items(args.files))
    if stated:
        try:
            job, evidence = state(reading.job, reading.evidence, stated, "command line")
            reading = replace(reading, job=job, evidence=evidence, state="read")
        except StatingError as error:
            raise UserError(str(error)) from None
    if args.seen:
        reading = _with_seen(reading, args.seen)
    allow, margin = allowed.of(args) if allowed.given(args) else allowed.of_link(args.files)
    report = diagnose_reading(reading, allow=allow, margin_bytes=margin)
    if args.fewer and report.run is not None:
        report = replace(report, plan=allowed.with_fewer(report.plan, report.run, allow, margin))
    if args.json:
        from advisor.render import json

        output.write(json.text(json.of_report(report)) + "\n")
    elif args.link:
        from advisor.share import link, with_allowed

        output.write(with_allowed(link(reading.job, reading.evidence), allow, margin).query + "\n")
    elif args.markdown or args.html or args.chat:
        from importlib import import_module

        form = "markdown" if args.markdown else "html" if args.html else "chat"
        output.write(import_module(f"advisor.render.{form}").report(report))
    else:
        from advisor.render import terminal

        output.write(terminal.report(report, output.sheet()))
    doubled = any(f.tier in ("copies", "fallback") for f in report.findings)
    if args.strict and report.exit_code == 0 and (report.verdict == "tight" or doubled):
        return 1
    return int(report.exit_code)


def _with_seen(reading: Reading, marks: list[str]) -> Reading:
    """The reading with what was seen; an unknown name is refused with those that are known."""
    from advisor.rules import observing
    from advisor.rules.engine import all_rules

    causes = frozenset(rule.id for rule in all_rules())
    if unknown := next((mark for mark in marks if not observing.known(mark, causes)), None):
        known = ", ".join((*observing.OBSERVATIONS, *sorted(observing.MOMENTS), "<cause>-remedied-fails"))
        raise UserError(f"--seen {unknown[:60]}: nothing of that name can be seen; known are {known}")
    return replace(reading, evidence=replace(reading.evidence, marks=(*reading.evidence.marks, *marks)), state="read")


def _of_link(names: list[str]) -> Reading | None:
    """What a link says, where one is all that was given; what it lost is said on standard error."""
    from advisor.reading import Reading
    from advisor.share import find_link, open_link

    query = find_link(names[0]) or _of_bundle(Path(names[0])) if len(names) == 1 and names[0].strip() else None
    if query is None:
        return None
    opened = open_link(query)
    for text in opened.dropped:
        print(f"advisor: the link held something that could not be used: {text}", file=sys.stderr)
    return Reading(opened.job, opened.evidence)


def _of_bundle(path: Path) -> str | None:
    """The link inside a diagnosis bundle that `advisor run` wrote."""
    from advisor.launching.bundle import KEY, MAX_BYTES, query_of

    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        with path.open("rb") as file:
            if KEY.encode() not in file.read(200):
                return None
        return query_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def items(names: list[str]) -> list[Item]:
    """Named texts for the readers: files as paths, folders opened, ``-`` read once.

    Raises:
        UserError: a file that is not there, or is neither a file nor a folder.
    """
    out: list[Item] = []
    for name in dict.fromkeys(names):
        if name == "-":
            out.append(("stdin", files.standard_input(MAX_STDIN)))
            continue
        path = files.readable(name)
        try:
            if path.is_dir():
                out.extend(_folder(path))
            elif path.is_file():
                path.open("rb").close()
                out.append((path.name, path))
            elif path.exists():  # what this process holds open already: a shell's <(command)
                with path.open("rb") as handle:
                    out.append((path.name, handle.read(MAX_STDIN)))
            else:
                raise UserError(f"{name}: there is no such file")
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror or error}") from None
    if not out:
        raise UserError("nothing to read: the folders named hold no files")
    return _named_apart(out)


def _folder(path: Path) -> list[Item]:
    found = sorted(p for p in path.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts))
    return [(str(p.relative_to(path)), p) for p in found[:MAX_FILES]]


def _named_apart(found: list[Item]) -> list[Item]:
    """Two files of one name from different folders keep their folder in the name."""
    names = [name for name, _ in found]
    return [(f"{c.parent.name}/{n}" if names.count(n) > 1 and isinstance(c, Path) else n, c) for n, c in found]
