"""``advisor lengths DATA``: how long the samples are, and the chance that a batch exceeds what fits."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.cli import UserError
from advisor.commands import files, jobfile, options, output

if TYPE_CHECKING:
    from advisor.run import Run

STEPS = (1, 10, 100, 1000, 10_000)
JOBS, ROWS, NUMBERS = (".yaml", ".yml"), (".jsonl", ".ndjson"), (".json",)  # endings of --rehearsal's file, by what it holds
LOGS = frozenset({".log", ".out", ".err"})  # every line of it would count as a sample
NAME = "rehearsal of the worst batch"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "data", metavar="DATA", type=files.readable, help="JSON lines, parquet, arrow, CSV or plain text, a folder of them, or a data set on disk"
    )
    parser.add_argument(
        "--tokenizer", type=files.readable, metavar="FILE", help="a tokenizer.json; without it characters are divided by --characters-per-token"
    )
    parser.add_argument("--characters-per-token", type=float, default=4.0, metavar="X", help="default 4, an assumption")
    parser.add_argument(
        "--job", metavar="JOB", type=files.named, help="a job file: what fits is the longest sequence that its estimate allows; rows are cut at its seq_len"
    )
    parser.add_argument("--fits", type=int, metavar="TOKENS", help="the longest sequence that fits, where it is known")
    parser.add_argument("--steps", type=int, metavar="N", help="also the chance by step N")
    parser.add_argument(
        "--rehearsal", type=Path, metavar="FILE",
        help="write the worst batch, to run it first; the name's ending says as what: .jsonl its rows (data to train one step on), .yaml the job at its"
        " length (needs --job; for advisor validate), .json the numbers of its rows",
    )  # fmt: skip
    options.add_json(parser)
    options.add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print; exit code 1 where a sample of the data does not fit."""
    from advisor import lengths

    if not args.data.exists():
        raise UserError(f"{args.data}: there is no such file")
    if args.data.suffix.lower() in LOGS and args.data.is_file():
        raise UserError(f"{args.data} is a log by its name: `advisor diagnose` reads it. If its lines are samples, give it a name that ends in .txt")
    options.amount("--characters-per-token", args.characters_per_token, "characters", most=1000)
    if (args.fits is not None and args.fits < 1) or (args.steps is not None and args.steps < 1):
        raise UserError("--fits and --steps take whole numbers above 0")
    if args.rehearsal is not None:
        _may_rehearse(args)
    resolved = jobfile.resolved_job(args) if args.job else None
    batch = (resolved.job.batch.micro_batch or 1) if resolved else 1
    step = batch * (resolved.job.batch.gradient_accumulation or 1) * _data_ranks(resolved) if resolved else 1
    try:
        found = lengths.measure(args.data, _counter(args.tokenizer), per_token=args.characters_per_token)
    except (OSError, ImportError) as error:
        raise UserError(f"{args.data} cannot be read: {error}") from None
    fits = args.fits if args.fits is not None else _longest_that_fits(resolved) if resolved else None
    cut = _cut(resolved)
    long = 0 if fits is None or (cut is not None and cut <= fits) else found.longer_than(fits)
    steps = sorted({*STEPS, *([args.steps] if args.steps else [])})
    data: dict[str, Any] = {
        "version": 1, "samples": found.samples, "not_understood": found.not_understood, "first_not_understood": found.first_not_understood,
        "unit": found.unit, "histogram": [list(pair) for pair in found.histogram],
        "p50": found.quantile(0.5), "p95": found.quantile(0.95), "p99": found.quantile(0.99), "max": found.longest[0][0],
        "cut_at": cut, "cut": found.longer_than(cut) if cut is not None else None,
        "fits_tokens": fits, "samples_a_step": step, "longer": long if fits is not None else None,
        "chance_by_step": {n: lengths.chance(long, found.samples, n * step) for n in steps} if fits is not None else {},
    }  # fmt: skip
    if args.rehearsal is not None:
        _rehearse(args.rehearsal, args.data, tuple((min(tokens, cut or tokens), row) for tokens, row in found.longest[:step]), resolved)
    if args.json:
        from advisor.render import json

        output.write(json.text(data) + "\n")
    else:
        output.write(
            _told(data) + ("" if args.rehearsal is None else f"\nWrote {args.rehearsal}: {_rehearsed(args.rehearsal, min(step, len(found.longest)))}\n")
        )
    return 1 if long else 0


def _rehearsed(path: Path, rows: int) -> str:
    """What the file holds, and what to do with it."""
    if path.suffix in JOBS:
        return f"the job at the worst batch's length; `advisor validate {path}` runs it before the rest"
    return "the longest row; train one step on it before the rest" if rows == 1 else f"the {rows:,} longest rows; train one step on them before the rest"


def _share(share: float) -> str:
    """A chance that is neither none nor certain never looks like either."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    return "over 99.9 %" if 0.999 < share < 1 else f"{share * 100:.1f} %"


def _told(data: dict[str, Any]) -> str:
    paper = output.sheet()
    paper.say(f"{data['samples']:,} samples: half within {data['p50']:,}, 99 % within {data['p99']:,}, longest {data['max']:,} {data['unit']}.", "bold")
    if data["not_understood"]:
        what = f"{data['not_understood']:,} rows (the first is row {data['first_not_understood']:,}, counted from 0)"
        paper.say(f"{what} were not understood: no text, conversation, input_ids or length is in them. They are in no figure.", indent=2)
    if data["cut"]:
        paper.say(f"The job's sequence length is {data['cut_at']:,}: of the {data['cut']:,} that are longer no more than that comes into a batch.", indent=2)
    if data["fits_tokens"] is None:
        paper.say("Give --job JOB or --fits TOKENS for the chance that a batch does not fit.", indent=2)
    elif not data["longer"]:
        what = "No row that is trained" if data["cut"] else "None"
        paper.say(f"{what} is longer than the {data['fits_tokens']:,} tokens that fit.", indent=2)
    else:
        longer, step = f"{data['longer']:,} {'is' if data['longer'] == 1 else 'are'}", data["samples_a_step"]
        a_step = f"{step:,} sample{'' if step == 1 else 's'} a step"
        paper.say(f"{longer} longer than the {data['fits_tokens']:,} tokens that fit. With {a_step}, the chance that one has come", indent=2)
        for number, share in data["chance_by_step"].items():
            paper.say(f"by step {number:,}: {_share(share)}", indent=4)
    return paper.text()


def _counter(tokenizer: Path | None) -> Callable[[str], int] | None:
    if tokenizer is None:
        return None
    try:
        from tokenizers import Tokenizer

        loaded = Tokenizer.from_file(str(tokenizer))
    except ImportError:
        raise UserError("--tokenizer needs the package tokenizers (it comes with transformers)") from None
    except Exception as error:  # the library raises plain Exceptions
        raise UserError(f"{tokenizer} is no tokenizer.json: {str(error)[:200]}") from None
    return lambda text: len(loaded.encode(text).ids)


def _cut(resolved: Run | None) -> int | None:
    """Tokens of a row at most: ``batch.seq_len`` is an upper bound (job file, version 1); frameworks truncate, split or drop what is longer."""
    if resolved is None or resolved.job.batch.seq_len is None:
        return None
    fact = resolved.facts.get("batch.seq_len")
    return None if fact is not None and fact.kind == "assumed" else resolved.job.batch.seq_len


def _data_ranks(resolved: Run) -> int:
    """Ranks that read different samples: all but the tensor, pipeline and context groups."""
    parallel = resolved.job.parallel
    return max(1, (parallel.shard or 1) * (parallel.replicate or 1) // (parallel.context or 1))


def _longest_that_fits(resolved: Run) -> int:
    """The longest sequence whose estimate (expected figure) is within the card, at the job's micro batch.

    Raises:
        UserError: nothing can be estimated, or no card is named.
    """
    from advisor.verdict import needed, of_run

    if resolved.usable is None:
        raise UserError("the job names no card; add --gpu NAME, or give --fits TOKENS")

    def fits(tokens: int) -> bool:
        ledger, _, sentence = of_run(resolved.but(batch={"seq_len": tokens}))
        if ledger is None:
            raise UserError(f"the job can not be estimated: {sentence}")
        return resolved.usable is not None and needed(ledger).expected <= resolved.usable[0]

    if not fits(1):
        raise UserError("the job does not fit at any length: see `advisor plan`")
    low, high = 1, 2
    while high < 1 << 24 and fits(high):
        low, high = high, high * 2
    while high - low > max(1, low // 256):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _may_rehearse(args: argparse.Namespace) -> None:
    """Before the data are read: whether the file's ending says what to write, and whether nothing is lost by it.

    Raises:
        UserError: it does not, or something would be.
    """
    path, inputs = args.rehearsal, [args.data, args.job, args.tokenizer]
    if path.suffix not in (*JOBS, *ROWS, *NUMBERS):
        raise UserError(f"--rehearsal {path}: the name's ending says what is written: .jsonl rows, .yaml the job at their length, .json the rows' numbers")
    if path.suffix in JOBS and not args.job:
        raise UserError(f"--rehearsal {path} is a job at the worst batch's length; give the job with --job")
    if args.data.is_dir() and path.suffix in (*ROWS, *NUMBERS) and args.data.resolve() in path.resolve().parents:
        raise UserError(f"--rehearsal {path} would lie in the folder of the data and count as data from then on; name a file outside {args.data}")
    if path.suffix in ROWS:  # rows look like any other data: they replace nothing but themselves
        files.guard("--rehearsal", path, inputs)
        return
    mark = f"name: {NAME}" if path.suffix in JOBS else '"advisor_rehearsal"'
    files.guard("--rehearsal", path, inputs, lambda head: mark.encode() in head)


def _rehearse(path: Path, data: Path, longest: tuple[tuple[int, int], ...], resolved: Run | None) -> None:
    """Write the worst batch, in the form that the file's name asks for."""
    import json

    rows = [row for _, row in longest]
    if path.suffix in JOBS and resolved is not None:
        text = resolved.stated.but(name=NAME, batch={"seq_len": max(1, longest[0][0]), "packed": True}).to_yaml()
    elif path.suffix in ROWS:
        from advisor.rows import rows as rows_of

        wanted = set(rows)
        kept = {number: row for number, row in enumerate(rows_of(data)) if number in wanted}
        text = "".join(json.dumps(kept[row] if isinstance(kept[row], dict) else {"text": kept[row]}, ensure_ascii=False, default=str) + "\n" for row in rows)
    else:
        use = "run one training step on these rows first: dataset.select(rows)"
        text = json.dumps({"advisor_rehearsal": 1, "use": use, "rows": rows, "tokens": [t for t, _ in longest]}, indent=1) + "\n"
    try:
        if path.suffix in ROWS and path.is_file() and path.stat().st_size and path.read_bytes() != text.encode():
            raise UserError(f"--rehearsal {path} is there already, with other rows, and would be lost; name another file, or remove it first")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
