"""What sentences observe of a run, and what only looks like it: denials, other switches, figures that are no growth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advisor.evidence import Evidence, Line
from advisor.rules import observed


def _evidence(text: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"question.txt:{n}", line) for n, line in enumerate(text.split("\n"), 1)))


OBSERVED = [
    (observed.checkpointing_changes_nothing, "Memory is the same with and without gradient checkpointing.", True),
    (observed.checkpointing_changes_nothing, "Gradient checkpointing does not reduce the memory at all.", True),
    (observed.checkpointing_changes_nothing, "Gradient checkpointing does not change the loss, the results stay the same.", False),
    (observed.worked_before, "The same script worked fine with an older version of the trainer.", True),
    (observed.worked_before, "The same script works if I use an older GPU and a batch of one.", False),
    (observed.whole_on_each, "Every rank holds the full model on its card.", True),
    (observed.whole_on_each, "With FSDP not every rank holds the full model.", False),
    (observed.grows, "The GPU memory increases with each training step.", True),
    (observed.grows, "The memory in use is logged each step; the loss increases.", False),
]


@pytest.mark.parametrize(("seen", "text", "says"), OBSERVED)
def test_an_observation_is_of_memory_and_as_it_is_written(seen: Callable[[Evidence], str | None], text: str, says: bool) -> None:
    assert (seen(_evidence(text)) is not None) is says
