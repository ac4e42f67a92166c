"""What a team adds as files: failures of its own as lessons, and house rules that a run is held to.

The folder is named by ``ADVISOR_TEAM``: ``lessons/*.md`` in the form of ``knowledge/lessons/``, and ``rules.yaml``, a list of::

    - field: parallel.strategy
      is: [fsdp2, zero3]
      says: We divide every model above 3B; see the wiki, page Sharding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec import field as named

from advisor import knowledge
from advisor.job import fields
from advisor.run import Run

VARIABLE = "ADVISOR_TEAM"
MAX_BYTES = 1_000_000  # of a file


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A house rule: a field that is known must be one of ``is``, none of ``is_not``, within ``at_least`` and ``at_most``."""

    field: str
    says: Annotated[str, Meta(min_length=1, max_length=500)]
    is_: tuple[Any, ...] | None = named(default=None, name="is")
    is_not: tuple[Any, ...] = ()
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if self.field not in fields():
            raise ValueError(f"the job file has no field {self.field!r}")

    def broken(self, value: Any) -> bool:
        """Whether a value goes against it; a value that is not known does not."""
        if value is None:
            return False
        if (self.is_ is not None and value not in self.is_) or value in self.is_not:
            return True
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return (self.at_least is not None and value < self.at_least) or (self.at_most is not None and value > self.at_most)


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The team's folder; ``None`` where none is named."""
    text = environment.get(VARIABLE, "").strip()
    return Path(text) if text else None


def lessons() -> tuple[str, ...]:
    """Names of the team's lessons."""
    own = folder()
    return () if own is None else tuple(sorted(f"team-{file.stem}" for file in (own / "lessons").glob("*.md")))


def beside_lessons(name: str) -> Path | None:
    """A file beside the team's lessons; ``None`` where there is none of that name."""
    own = folder()
    file = None if own is None or Path(name).name != name else own / "lessons" / name
    return file if file is not None and file.is_file() else None


def page(name: str) -> tuple[dict[str, Any], str]:
    """Front matter and text of a team's lesson.

    Raises:
        knowledge.KnowledgeError: it cannot be read.
    """
    import yaml

    own = folder()
    file = Path() if own is None else own / "lessons" / f"{name.removeprefix('team-')}.md"
    try:
        text = file.read_text(encoding="utf-8")[:MAX_BYTES]
        front, line, body = text.removeprefix("---\n").partition("\n---\n")
        found = yaml.safe_load(front)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise knowledge.KnowledgeError(f"{file.name}: {str(error).splitlines()[0]}") from None
    if not line or not isinstance(found, dict):
        raise knowledge.KnowledgeError(f"{file.name}: a lesson is front matter between two lines of --- and a text, as in knowledge/lessons/")
    return found, body.strip()


def broken(run: Run) -> tuple[tuple[str, Any, str], ...]:
    """The house rules that a run goes against: field, its value, what the rule says.

    Raises:
        knowledge.KnowledgeError: the file is not in its form.
    """
    own = folder()
    if own is None or not (own / "rules.yaml").is_file():
        return ()
    return tuple((r.field, run.job.get(r.field), r.says) for r in _rules(own / "rules.yaml") if r.broken(run.job.get(r.field)))


@cache
def _rules(file: Path) -> tuple[Rule, ...]:
    import yaml

    try:
        text = file.read_text(encoding="utf-8")[:MAX_BYTES]
        return convert(yaml.safe_load(text) or (), tuple[Rule, ...])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        raise knowledge.KnowledgeError(f"{file.name}: {str(error).splitlines()[0]}; it is a list of field, is or at_most, and says") from None
