"""Whether the run failed at a step at which it evaluates or saves: the failing step against the intervals that the settings give.

A step that is a multiple of ``eval_steps`` is reached by chance once in so many steps; a failure exactly there, after earlier steps went
through, is far likelier what is done there. Where both intervals agree, it says less of each.
"""

from __future__ import annotations

import re
from typing import Literal

from advisor.evidence import Evidence
from advisor.rules import growth

Event = Literal["eval", "save"]
_KEYS: dict[Event, re.Pattern[str]] = {
    # transformers TrainingArguments; Megatron --eval-interval, --save-interval; verl trainer.test_freq, save_freq; Lightning; nanoGPT
    "eval": re.compile(
        r"(?:^|[._-])(?:eval_steps|eval_interval|eval_freq|test_freq|val_check_interval|valid_steps|evaluate_every\w*|eval_every\w*)$", re.IGNORECASE
    ),
    "save": re.compile(
        r"(?:^|[._-])(?:save_steps|save_interval|save_freq|checkpointing_steps|save_every\w*|ckpt_interval|checkpoint_interval)$", re.IGNORECASE
    ),
}
LEAST = 10  # a shorter interval is hit by chance


def interval(evidence: Evidence, event: Event) -> tuple[int, str] | None:
    """Steps between two such events, and where that stands; ``None`` where it is not written, or as a share of an epoch."""
    for where, key, value in evidence.seen_keys:
        if _KEYS[event].search(key.replace("-", "_")) and re.fullmatch(r"\d{1,7}", str(value).strip()) and int(str(value)) >= LEAST:
            return int(str(value)), where
    return None


def at(evidence: Evidence, event: Event, *, alone: bool) -> str | None:
    """The sentence where the last step shown is a multiple of this interval (``alone``: and not of the other one)."""
    failure, step, own = evidence.failure, growth.last_step(evidence), interval(evidence, event)
    if failure is None or failure.phase is not None or not step or own is None or step % own[0]:
        return None
    other = interval(evidence, "save" if event == "eval" else "eval")
    if (other is None or step % other[0] != 0) != alone:
        return None
    done = "an evaluation" if event == "eval" else "a save"
    return f"it failed at step {step:,}, which is {step // own[0]} times the interval of {own[0]:,} steps after which {done} is due ({own[1]})"
