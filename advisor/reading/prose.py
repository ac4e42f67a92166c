"""What people write beside the files: "8 x A100-SXM4-40GB", "batch 16, source 512", "Llama-3.1-8B on an RTX 4090?", comments in scripts.

Such a remark fills what nothing else says; a config that says otherwise wins, and the difference is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from advisor import cards
from advisor.architecture import presets
from advisor.evidence import Fact
from advisor.reading import degrees
from advisor.reading.merge import PROSE, Ranked
from advisor.reading.pattern import pattern as lazily
from advisor.reading.spoken_cards import BESIDE, cards_in
from advisor.reading.spoken_claims import COLOCATED, FRACTION, claims_of
from advisor.reading.spoken_frameworks import INNER
from advisor.reading.spoken_models import another_part, model_spoken_of
from advisor.reading.spoken_settings import lengths_in, settings_in
from advisor.reading.switched_off import is_code

_ID = lazily(r"(?<![\w./:-])([A-Za-z0-9][\w.-]{1,60}/[A-Za-z0-9][\w.-]{1,90})(?![\w/])")
_BARE = lazily(r"(?<![\w./-])([A-Za-z][A-Za-z]{1,20}[-_]?\d{0,3}(?:[.-][\w.]{1,20}){1,8}|gpt2(?:-\w+)?|t5-(?:small|base|large|3b|11b))(?![\w/])")
_ORDINARY = lazily(r"^(?:[a-z]+-[a-z]+|[\w.-]+\.(?:py|sh|txt|json|ya?ml|log|toml|md|cu|cpp))$", re.IGNORECASE)


def remarks_of(lines: Iterator[tuple[str, str]]) -> Iterator[Ranked]:
    """Facts of remarks; ``lines``: (where, text) of comments, questions and log lines.

    A strategy, a method, a switch is taken only where all of them name one: people compare them as often as they use them.
    """
    claims: dict[str, dict[str, tuple[str, str]]] = {}
    for where, text in lines:
        if not 2 <= len(text) <= 2000:
            continue
        for field, value in _found(text):
            fact = Fact(field, value, "read", where, why="a remark", text=text.strip()[:200])
            if others := _other_sizes(field, value, text):
                fact = replace(fact, kind="inferred", why=f"a remark that does not say its memory: it is made with {others} GB too")
            yield Ranked(fact, PROSE)
        for field, value in claims_of(text):
            claims.setdefault(field, {}).setdefault(value, (where, text.strip()[:200]))
    for inner in INNER:  # what another one runs inside is not the framework whose settings the user writes
        if len(claims.get("framework.name", {}).keys() - {"weighed"}) > 1:
            claims["framework.name"].pop(inner, None)
    for field, values in claims.items():
        if len(values) == 1:
            value, (where, text) = next(iter(values.items()))
            for name, stated in (("method.kind", "lora"), ("method.base", "nf4")) if value == "qlora" else ((field, value),):
                yield Ranked(Fact(name, stated, "read", where, why="a remark", text=text), PROSE)


def beside(lines: Iterator[tuple[str, str]]) -> Iterator[Ranked]:
    """The cards that a line of settings names in passing (``model = Qwen/Qwen2.5-1.5B, 1x L40S 48GB``); nothing else of such a line is a remark."""
    for where, text in lines:
        if len(text) <= 200 and not {'"', "'"} & set(text) and BESIDE.search(text) is not None:
            for field, value in cards_in(text):
                yield Ranked(Fact(field, value, "read", where, why="a remark", text=text.strip()[:200]), PROSE)


_GB = lazily(r"\d ?G(?:i?B)?\b|-(?:16|24|32|40|48|80|94|96)\b", re.IGNORECASE)


def _other_sizes(field: str, value: object, text: str) -> str:
    """In words, what else a card that a text names without its memory is made with."""
    if field != "hardware.gpu" or not isinstance(value, str) or _GB.search(text) is not None:
        return ""
    return " or ".join(str(size) for size in cards.other_sizes(value))


def _found(text: str) -> Iterator[tuple[str, object]]:
    yield from cards_in(text)
    yield from settings_in(text)
    if "utilization" in text.lower() and COLOCATED.search(text) and (m := FRACTION.search(text)) is not None:
        yield "rollout.memory_fraction", float(m[1])
    yield from lengths_in(text)
    yield from degrees.layout(text)
    if (name := model_in(text)) is not None:
        yield "model.name", name


@lru_cache(maxsize=512)
def model_in(text: str) -> str | None:
    """The first name in a text that a known model bears; a hub id before a name in words, and that before a bare name."""
    for pattern in (_ID, _BARE):
        if pattern is _BARE and (spoken := model_spoken_of(text)) is not None:
            return spoken
        for m in list(pattern.finditer(text))[:20]:
            name = m[1].rstrip(".,")
            if _ORDINARY.match(name) and "/" not in name and name.lower() not in presets.index() and name.lower() not in _tails():
                continue
            if (preset := presets.find(name)) is not None and not another_part(text, m.start(1), m.end(1)):
                return name if "/" in name else preset.hub_id
    return None


@lru_cache(maxsize=1)
def _tails() -> frozenset[str]:
    return frozenset(name.rpartition("/")[2] for name in presets.index())


def comments(name: str, text: str) -> Iterator[tuple[str, str]]:
    """``(where, comment)`` of scripts and configs: what stands behind ``#``."""
    for number, line in enumerate(text.split("\n")[:20_000], 1):
        start = line.find("#")
        if start >= 0 and line[start : start + 2] != "#!" and (start == 0 or line[start - 1].isspace()):
            said = line[start:].lstrip("# ").strip()
            if not is_code(said):
                yield f"{name}:{number}", said
