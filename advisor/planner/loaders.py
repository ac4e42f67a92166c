"""By which of Unsloth's loaders a line is written: the one of the user's script, else the one that the model needs.

unsloth 2026.10.9 models/loader.py: ``FastVisionModel`` and ``FastTextModel`` are ``FastModel`` and take what ``FastLanguageModel`` takes; the latter
loads the language model of one that sees images without its tower, and says that ``FastVisionModel`` is what keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping

from advisor.reading.pattern import pattern
from advisor.run import Run

WRITTEN = "FastLanguageModel"  # as the table has it
VISION = "FastVisionModel"
_OF_SCRIPT = pattern(r"\b(Fast(?:Language|Vision|Text)?Model)\.(?:from_pretrained|get_peft_model)\(")


def by_loader(found: Mapping[str, tuple[str, ...]], run: Run) -> dict[str, tuple[str, ...]]:
    """The lines, with the loader of this run in those for Unsloth."""
    if run.job.framework.name != "unsloth":
        return dict(found)
    name = loader(run)
    return {place: tuple(line.replace(f"{WRITTEN}.", f"{name}.") for line in lines) for place, lines in found.items()}


def loader(run: Run) -> str:
    """The class whose ``from_pretrained`` loads the model."""
    lines = run.seen.lines if run.seen is not None else ()
    said = next((hit.group(1) for line in lines if (hit := _OF_SCRIPT.search(line.text)) is not None), None)
    sees = (run.architecture is not None and bool(run.architecture.vision)) or run.job.model.vision is not None
    return said or (VISION if sees else WRITTEN)
