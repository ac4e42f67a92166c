"""The files that a command line names and that say how the run was set up: configs, scripts, and a model folder's ``config.json``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

SUFFIXES = frozenset({".yaml", ".yml", ".json", ".json5", ".toml", ".py", ".sh", ".cfg", ".ini", ".gin", ".args"})
FROM_FOLDER = ("config.json", "adapter_config.json", "args.json", "training_args.yaml")
MAX_FILES = 24
MAX_FILE_BYTES = 1024 * 1024
# what of the environment decides memory or placement and can stand before a command
VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_MIXED_PRECISION",
)


def files(command: Sequence[str], folder: Path | None = None) -> list[tuple[str, Path]]:
    """``(name, path)`` of each config or script on the command line, in its order; ``--config=x.yaml`` and ``config=x.yaml`` count too."""
    found: dict[Path, str] = {}
    for word in command[1:] if command else ():
        for text in dict.fromkeys((word, word.partition("=")[2])):
            if not text or len(text) > 1000 or "\0" in text:
                continue
            path = (folder or Path()) / text
            for candidate in [path] if path.suffix in SUFFIXES else [path / name for name in FROM_FOLDER]:
                if len(found) < MAX_FILES and _small_file(candidate):
                    found.setdefault(candidate, str(Path(text).name if candidate == path else Path(path.name) / candidate.name))
    return [(name, path) for path, name in found.items()]


def line(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command as a shell line, with the variables of its environment that decide memory."""
    set_before = [f"{name}={shlex.quote(environment[name])}" for name in VARIABLES if environment.get(name)]
    return " ".join([*set_before, shlex.join(command)])


def _small_file(path: Path) -> bool:
    try:
        return path.is_file() and 0 < path.stat().st_size <= MAX_FILE_BYTES
    except OSError:
        return False
