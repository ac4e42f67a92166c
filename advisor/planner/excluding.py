"""What is out of the question under another name: one flag of a trainer may bring two techniques at once."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.job import JobError, fields
from advisor.run import Run
from advisor.techniques import NotApplicable, all_techniques


def brings_along(before: Run, after: Run, excluded: Iterable[str]) -> str | None:
    """The excluded technique whose whole change of ``before`` is part of the change to ``after``; ``None`` where there is none.

    ``use_liger_kernel`` of transformers and TRL brings the fused loss together with the fused kernels: whoever excludes either of them
    excludes the flag. So is QLoRA excluded with LoRA, because it is LoRA on a packed base.
    """
    names = sorted(excluded)
    if not names:
        return None
    made = _changed(before, after)
    for name in names:
        alone = _alone(name, before)
        wanted = _changed(before, alone) if alone is not None else {}
        if wanted and all(path in made and made[path] == value for path, value in wanted.items()):
            return name
    return None


def _alone(name: str, run: Run) -> Run | None:
    try:
        after = all_techniques()[name].apply(run)
    except JobError:
        return None
    return None if isinstance(after, NotApplicable) else after


def _changed(before: Run, after: Run) -> dict[str, object]:
    """The job's fields that differ, with what they are afterwards."""
    return {path: value for path in fields() if (value := after.job.get(path)) != before.job.get(path)}
