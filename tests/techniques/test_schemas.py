"""Every line for TRL and DeepSpeed names what these libraries accept; with the libraries installed, they take the lines themselves."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

import pytest

from advisor import knowledge
from advisor.planner.lines import changed_lines
from tests.techniques import schemas
from tests.techniques.in_frameworks import FRAMEWORKS, applied

KNOWN = schemas.kept()
NAMED = ("zero_optimization", "tensor_parallel")
CALLERS = frozenset({"activation_checkpointing", "optimizer", "bf16", "fp16"})


def emitted(layer: str) -> Iterator[tuple[str, str, str]]:
    """``(framework, technique, line)`` of a layer, each line once."""
    seen: set[str] = set()
    for framework in FRAMEWORKS:
        for name in knowledge.page_names("techniques"):
            for before, after in applied(framework, name):
                for line in changed_lines(before, after, name).get(layer, ()):
                    if line not in seen:
                        seen.add(line)
                        yield framework, name, line


def test_trl_has_the_fields() -> None:
    fields = {name for config in schemas.TRL_CONFIGS for name in KNOWN["trl"][config]}
    checked = 0
    for _, technique, line in emitted("trl"):
        if "(" not in line.partition("=")[0]:
            checked += 1
            assert line.partition("=")[0] in fields, (technique, line)
            ast.parse(f"dict({line})")
    assert checked > 20


def test_deepspeed_has_the_keys() -> None:
    known = KNOWN["deepspeed"]
    checked = 0
    for _, technique, line in emitted("deepspeed"):
        found: dict[str, Any] = json.loads(line)
        checked += 1
        for section, content in found.items():
            assert section in known["keys"], (technique, line)
            for key, value in content.items() if section in NAMED else ():
                assert key in known[section], (technique, line)
                assert not isinstance(value, dict) or set(value) <= set(known[key]), (technique, line)
            assert section in NAMED or section in CALLERS or not isinstance(content, dict), (technique, line)
    assert checked > 15


@pytest.mark.torch
def test_deepspeed_takes_the_lines() -> None:
    config = pytest.importorskip(schemas.ZERO)
    for _, technique, line in emitted("deepspeed"):
        section = json.loads(line).get("zero_optimization")
        if section is not None:
            assert config.DeepSpeedZeroConfig(**section), (technique, line)


@pytest.mark.torch
def test_the_names_are_those_of_the_libraries() -> None:
    pytest.importorskip("trl")
    pytest.importorskip(schemas.ZERO)
    assert schemas.installed() == KNOWN
