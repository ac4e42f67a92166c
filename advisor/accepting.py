"""What the public functions take, in the forms in which people have it: a text, a file, names with texts; a job as a mapping, a text, a file, a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from advisor.opening import can_be_opened

if TYPE_CHECKING:
    import torch

    from advisor.evidence import Evidence
    from advisor.job import Job
    from advisor.ledger import Ledger
    from advisor.measurement.watching.policy import Policy
    from advisor.measurement.watching.session import Watch
    from advisor.report import Plan
    from advisor.run import Run

Item = tuple[str, "bytes | str | Path"]
Items: TypeAlias = "str | bytes | Path | Mapping[str, bytes | str | Path] | Sequence[str | bytes | Path | Item]"
Jobs: TypeAlias = "Job | Run | Mapping[str, Any] | str | Path"
LONGEST_NAME = 1000  # characters of a file's name; what is longer, or has lines, is the text itself


def estimate(job: Jobs) -> Ledger:
    """Who holds how many bytes, for every phase the job has. ``job``: see :func:`run_of`.

    Raises:
        CannotEstimate: the model's shape, the micro batch or the sequence length is not known.
        TypeError, JobError, OSError: as :func:`run_of`.
    """
    from advisor import arithmetic

    return arithmetic.estimate(run_of(job, "estimate"))


def plan(job: Jobs, **how: Any) -> Plan:
    """The least set of changes with which a job fits. ``job``: see :func:`run_of`; ``how``: see :func:`advisor.planning.plan`.

    Raises:
        TypeError, JobError, OSError: as :func:`run_of`.
    """
    from advisor import planning

    return planning.plan(run_of(job, "plan"), **how)


def resolve(job: Jobs, evidence: Evidence | None = None) -> Run:
    """The run of a job, every value with its source. ``job``: see :func:`run_of`.

    Raises:
        TypeError, JobError, OSError: as :func:`run_of`.
    """
    from advisor import run
    from advisor.job import Job

    return run.resolve(job, evidence) if isinstance(job, Job) else run_of(job, "resolve", evidence)


def watch(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *, log: Path | str | None = None, policy: Policy | None = None,
    level: Literal["default", "full"] = "default", least: int | None = None, checkpointing: bool | None = None, explain: bool = True,
) -> Watch:  # fmt: skip
    """Watch a training loop: ``with advisor.watch(model, optimizer) as seen:`` names what is held twice, widened, kept, or not recomputed.

    Args:
        model, optimizer: as they are trained.
        log: a file for the events (``advisor events FILE`` reads it); of several ranks each writes its own, ``NAME.rankN.jsonl``.
        policy: warns or raises for what is not approved.
        level: ``default`` observes as many steps as 2 % of the time allow, ``full`` as many as 22 % do.
        least: bytes from which a tensor counts; ``None``: 0.1 % of the model's state, at least 4 KiB.
        checkpointing: whether it is meant to be on; ``None``: as the model's switches say.
        explain: where memory runs out, note cause and first change on the exception and write a diagnosis bundle.

    Raises:
        ImportError: torch is not installed here.
    """
    try:
        from advisor.measurement.watching import session
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            "advisor.watch observes a model in torch, and torch is not installed in this Python: call it in the environment that trains", name="torch"
        ) from None
    return session.watch(model, optimizer, log=log, policy=policy, level=level, least=least, checkpointing=checkpointing, explain=explain)


def run_of(job: Any, function: str, evidence: Evidence | None = None) -> Run:
    """The run of a Job, of a mapping in the job file's form, of its YAML or JSON text, of a file (its name or its Path), or of a run itself.

    Raises:
        TypeError: it is none of them.
        JobError: it is no job.
        OSError: the file can not be read.
    """
    from advisor.job import MAX_JOB_BYTES, Job, read_job
    from advisor.run import Run, resolve

    if isinstance(job, Run):
        return job
    if isinstance(job, Job):
        return resolve(job, evidence)
    if isinstance(job, Mapping):
        return resolve(read_job(job), evidence)
    if isinstance(job, str) and not _is_file(job) and _may_be_name(job) and ":" not in job:
        raise FileNotFoundError(f"advisor.{function}: there is no file {job!r}, and it is no text of a job")
    if isinstance(job, Path) or (isinstance(job, str) and _is_file(job)):
        path = Path(job)
        if path.exists() and not path.is_file():
            raise TypeError(f"advisor.{function} takes one job file, and {path} is none; a folder or a log goes to advisor.diagnose")
        with path.open("rb") as handle:
            return resolve(read_job(handle.read(MAX_JOB_BYTES + 1), where=path.name), evidence)
    if isinstance(job, str):
        return resolve(read_job(job), evidence)
    takes = "a Job, a Run, a mapping in the job file's form, its YAML or JSON text, or the name or Path of a job file"
    raise TypeError(f"advisor.{function} takes {takes}; it was given {_kind(job)}")


def items_of(given: Any, function: str = "diagnose") -> list[Item]:
    """Named texts and files of a text, of a file (its name or its Path), of a mapping of names to texts, or of a sequence of any of them and of pairs.

    A text of one line that names a file (or folder) is that file.

    Raises:
        TypeError: something of it is none of them.
    """
    if isinstance(given, (str, bytes, Path)):
        return [_item(given, 0)]
    if isinstance(given, Mapping) and all(isinstance(name, str) and isinstance(text, (str, bytes, Path)) for name, text in given.items()):
        return list(given.items())
    if isinstance(given, Sequence):
        return [_pair(one, number, function) for number, one in enumerate(given)]
    raise TypeError(f"advisor.{function} takes {_TAKEN}; it was given {_kind(given)}")


_TAKEN = (
    "a text, a file (its name or its Path), a mapping of names to texts, or a list of them or of (name, text) pairs; what is alive goes to"
    " model=, optimizer= or error=, and a job to advisor.estimate or advisor.plan"
)


def _pair(one: Any, number: int, function: str) -> Item:
    if isinstance(one, (str, bytes, Path)):
        return _item(one, number)
    if isinstance(one, (tuple, list)) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], (str, bytes, Path)):
        return (one[0], one[1])
    raise TypeError(f"advisor.{function} takes {_TAKEN}; item {number} of the list is {_kind(one)}")


def _item(one: str | bytes | Path, number: int) -> Item:
    if isinstance(one, Path) or (isinstance(one, str) and _is_file(one)):
        path = Path(one)
        return (path.name or str(path), path)
    return (f"text{number + 1}.txt" if number else "text.txt", one)


def _may_be_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and not any(sign in text for sign in "\n\0")


def _is_file(text: str) -> bool:
    """Whether a text is the name of a file or folder that is there."""
    try:
        return _may_be_name(text) and bool(text.strip()) and can_be_opened(Path(text))
    except OSError:  # longer than a name may be
        return False


def _kind(value: Any) -> str:
    return "None" if value is None else f"a mapping with the keys {', '.join(map(str, [*value][:4]))}" if isinstance(value, Mapping) else type(value).__name__
