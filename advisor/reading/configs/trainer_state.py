"""``trainer_state.json`` of a checkpoint: which batch ran, how far it came, and what was logged last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.evidence import Fact
from advisor.reading.configs.config_reading import ConfigReading

_TELLING = ("train_batch_size", "max_steps", "eval_steps", "save_steps", "logging_steps", "num_train_epochs")


def is_state(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a TrainerState (transformers trainer_callback.py)."""
    return "global_step" in data and ("log_history" in data or "is_world_process_zero" in data or "best_metric" in data)


def read_state(name: str, data: Mapping[str, Any], line_of: Mapping[str, int]) -> ConfigReading:
    """``train_batch_size`` is that of one process (trainer.py ``state.train_batch_size = self._train_batch_size``), not of all ranks together."""
    first = f"{name}:{line_of.get('global_step', 1)}"
    facts = [Fact("framework.name", "hf-trainer", "inferred", where=first, why="it is a checkpoint's TrainerState")]
    batch = data.get("train_batch_size")
    if isinstance(batch, int) and not isinstance(batch, bool) and 1 <= batch <= 1 << 20:
        where = f"{name}:{line_of.get('train_batch_size', 1)}"
        facts.append(Fact("batch.micro_batch", batch, "read", where=where, text=f'"train_batch_size": {batch}'))
    seen: list[tuple[str, str, Any]] = [
        (f"{name}:{line_of.get(key, 1)}", key, data[key]) for key in _TELLING if isinstance(data.get(key), int | float) and key != "train_batch_size"
    ]
    seen.append((first, "global_step", data["global_step"]))
    return ConfigReading("Hugging Face trainer state", "hf-trainer", tuple(facts), tuple(seen))
