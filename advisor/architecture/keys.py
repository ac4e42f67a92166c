"""Keys of a model config, read with bounds: a wrong value is an error that names the key, never a crash later.

What a config leaves out is filled from the config class's own defaults where one is known (``save_pretrained`` leaves out what
equals a default), and each filling is noted, so that the page can say what was assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 1 << 40  # no side of a real tensor comes near; stops 10**12 layers before any arithmetic
MOST_LAYERS = 10_000


class ConfigError(ValueError):
    """A model config that cannot be read; the message names the key, what was read, and what would be right."""


class Keys:
    """One config mapping (or a nested one) with its defaults; remembers which keys were read."""

    __slots__ = ("assumed", "config", "defaults", "gated", "model_type", "seen", "source", "where")

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, where: str = "") -> None:
        self.config, self.defaults, self.where = config, defaults or {}, where
        self.model_type = str(config.get("model_type") or "")
        self.seen: set[str] = {"model_type"}
        self.assumed: list[str] = []
        self.source = ""  # whose modelling code runs: the job's model.source
        self.gated: bool | None = None  # what the job says of the MLP, where the config does not settle it

    def raw(self, *names: str) -> Any:
        """The first of the names that is written (not null), else the first that has a default, else ``None``."""
        self.seen.update(names)
        for name in names:
            value = self.config.get(name)
            if value is not None:
                return value
        for name in names:
            # a key that is written as null is null: the default is for what is left out
            if name in self.defaults and name not in self.config:
                value = self.defaults[name]
                if value and not isinstance(value, str):
                    self.assumed.append(f"{self.where}{name} is not in the config; the config class's default {value!r} was taken")
                return value
        return None

    def written(self, *names: str) -> bool:
        """Whether one of the names is in the config itself, not null."""
        return any(self.config.get(name) is not None for name in names)

    def optional(self, *names: str, least: int = 1, most: int = MOST) -> int | None:
        """A whole number, or ``None`` where it is neither written nor has a default.

        Raises:
            ConfigError: where it is no whole number within the bounds.
        """
        value = self.raw(*names)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) < MOST:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(names, value, f"a whole number of at least {least}")
        if not least <= value <= most:
            raise self.wrong(names, value, f"a whole number from {least:,} to {most:,}")
        return value

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """A whole number that must be there or have a default.

        Raises:
            ConfigError: where it is missing or wrong.
        """
        value = self.optional(*names, least=least, most=most)
        if value is None:
            value = default
        if value is None:
            kind = f"model_type {self.model_type!r}" if self.model_type else "this model"
            raise ConfigError(f"the config has no {self.where}{names[0]!r}, which decides the size of {kind}; add it, or name a known model instead")
        return value

    def required(self, *names: str, most: int = MOST) -> int:
        """A whole number that must be written in the config itself: no default is taken for what makes a model large or small."""
        self.seen.update(names)
        if not self.written(*names):
            raise ConfigError(
                f"the config has no {self.where}{names[0]!r}; the model's size cannot be told without it (paste the whole config.json, or name a known model)"
            )
        return self.size(*names, most=most)

    def flag(self, *names: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.raw(*names)
        if value is None:
            return default
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise self.wrong(names, value, "true or false")

    def word(self, *names: str, default: str = "") -> str:
        """A short text."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 4000:
            raise self.wrong(names, value, "a word")
        return value

    def number(self, *names: str, default: float = 0.0, most: float = 1e12) -> float:
        """A number of at least 0."""
        value = self.raw(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise self.wrong(names, value, "a number of at least 0")
        return float(value)

    def fraction(self, *names: str) -> float:
        """A share from 0 to 1: a dropout."""
        return self.number(*names, most=1.0)

    def items(self, *names: str, most: int = MOST_LAYERS) -> list[Any] | None:
        """A list, or ``None``."""
        value = self.raw(*names)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise self.wrong(names, value, f"a list of at most {most:,} items")
        return list(value)

    def section(self, name: str, *, defaults: Mapping[str, Any] | None = None) -> Keys | None:
        """A nested config, or ``None``."""
        value = self.config.get(name)
        self.seen.add(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong((name,), value, "a mapping of keys to values")
        inner = Keys(value, defaults if defaults is not None else self.defaults.get(name), f"{self.where}{name}.")
        inner.assumed, inner.gated, inner.source = self.assumed, self.gated, self.source
        return inner

    def wrong(self, names: tuple[str, ...], value: Any, right: str) -> ConfigError:
        """The error for a value: key, what was read, what would be right."""
        name = next((n for n in names if self.config.get(n) is not None), names[0])
        shown = _short(value)
        return ConfigError(f"{self.where}{name} reads {shown}, but must be {right}")

    def unread(self) -> tuple[str, ...]:
        """Whole numbers above 1 and words that no reader asked for and that may decide a shape."""
        return tuple(
            f"{self.where}{name}"
            for name, value in self.config.items()
            if isinstance(name, str) and name not in self.seen and type(value) is int and value > 1 and not _is_harmless(name)
        )[:20]


_HARMLESS = (
    "token",
    "_id",
    "version",
    "eps",
    "theta",
    "pretraining_tp",
    "max_length",
    "chunk_size",
    "num_labels",
    "seq_length",
    "logits_to_keep",
    "nextn_predict",
    "image_size",
    "n_ctx",
)


def _is_harmless(name: str) -> bool:
    return any(part in name for part in _HARMLESS)


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value.bit_length() < 200 else "a number of more than 60 digits"
    if isinstance(value, (str, float, bool)) or value is None:
        return repr(value[:60] if isinstance(value, str) else value)
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a mapping" if isinstance(value, Mapping) else f"a value of kind {type(value).__name__}"
