"""Plans of the reference jobs as text that an expert can read: what is changed, in which order, and what it costs in kind.

``python -m tests.planner.pinned`` writes the fixture anew; read the difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path

from advisor.job import read_job
from advisor.planning import plan
from advisor.report import Plan
from advisor.run import Run, resolve

JOBS = Path(__file__).resolve().parents[1] / "jobs"
FIXTURE = Path(__file__).with_name("plans.txt")
CARDS = ("rtx4090-24gb", "l40s-48gb", "a100-80gb")


def run_of(job: str, card: str) -> Run:
    """A reference job on another card."""
    return resolve(read_job((JOBS / f"{job}.yaml").read_bytes()).but(hardware={"gpu": card}))


def text_of(made: Plan) -> str:
    """One line a step; numbers are left to other tests, because every better estimate moves them."""
    lines = []
    for step in made.steps:
        marks = [step.tier, *(["changes what is learned"] if step.alters_learning else []), *(["fits"] if step.fits_after else [])]
        lines.append(f"  {step.technique} ({', '.join(marks)})")
    return "\n".join(lines or ["  nothing to change" if made.fits else "  no set of changes fits"])


def everything() -> dict[str, str]:
    """``{"j1 on a100-80gb": text}``."""
    jobs = sorted(file.stem for file in JOBS.glob("j*.yaml"))
    return {f"{job} on {card}": text_of(plan(run_of(job, card))) for job in jobs for card in CARDS}


def read_fixture() -> dict[str, str]:
    """The pinned plans."""
    found: dict[str, str] = {}
    for block in FIXTURE.read_text(encoding="utf-8").strip().split("\n\n"):
        head, _, body = block.partition("\n")
        found[head] = body
    return found


if __name__ == "__main__":
    FIXTURE.write_text("\n\n".join(f"{name}\n{text}" for name, text in everything().items()) + "\n", encoding="utf-8")
