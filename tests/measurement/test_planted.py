"""Faults planted in a tiny real run are found with their line, and nothing else is; a run without a fault is quiet."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="torch is not installed")

FAULTS = Path(__file__).with_name("faults.py")
CASES: list[tuple[str, str | None, str]] = [
    ("clean", None, ""),
    ("clean_bf16", None, ""),
    ("clean_checkpointed", None, ""),
    ("clean_inline", None, ""),
    ("second_bf16_copy", "duplicate-layout", ""),
    ("fp32_copy_of_bf16", "duplicate-layout", ""),
    ("transposed_copy", "duplicate-layout", ""),
    ("reference_model", "reference-copy", ""),
    ("reference_of_a_trainer", "reference-copy", "pair"),
    ("retained_loss_graph", "retained-graph", ""),
    ("summed_loss_graph", "retained-graph", ""),
    ("outputs_kept", "retained-objects", "outputs"),
    ("outputs_kept_by_the_model", "retained-objects", "module"),
    ("norm_upcast", "framework-upcast", "norm"),
    ("math_attention", "attention-fallback", "attention"),
    ("checkpointing_off", "checkpointing-broken", "switch"),
    ("checkpoint_differs", "checkpoint-differs", "recompute"),
    ("underflow", "gradient-underflow", "underflow"),
    ("resumed", "resume-on-device", ""),
]
Ask = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize(("run", "cause", "marker"), CASES, ids=[case[0] for case in CASES])
def test_planted(ask: Ask, run: str, cause: str | None, marker: str) -> None:
    seen = ask(f"faults.{run}")
    assert "raised" not in seen, seen["raised"]
    assert seen["failed"] is None
    told = seen["findings"]
    if cause is None:
        assert told == []
        return
    assert {kind for kind, _, _ in told} == {cause}, told
    source = FAULTS.read_text()
    begins = next(node.lineno for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == run)
    marked = f"# FAULT {marker or 'here'}"
    lines = [n for n, text in enumerate(source.splitlines(), 1) if text.rstrip().endswith(marked) and (marker or n >= begins)]
    assert {where.rpartition("/")[2] for _, where, _ in told} == {f"faults.py:{lines[0]}"}, told
