"""The build's JSON says what the YAML says, and an edited file is never shadowed by an older build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from advisor import compiling, knowledge


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "advisor").mkdir()
    (tmp_path / "knowledge").mkdir()
    monkeypatch.setattr(knowledge, "_PACKAGE", tmp_path / "advisor")
    caches = (knowledge.folder, knowledge.load_yaml, knowledge._compiled)
    for cached in caches:
        cached.cache_clear()
    yield tmp_path
    for cached in caches:
        cached.cache_clear()


def test_every_file_comes_back_as_yaml_reads_it() -> None:
    root = knowledge.folder("knowledge")
    read = {file.relative_to(root).as_posix(): yaml.safe_load(file.read_text(encoding="utf-8")) for kind in compiling.KINDS for file in root.glob(kind)}
    assert {name: compiling.decoded(entry["text"]) for name, entry in compiling.entries(root).items()} == read


def test_a_build_is_used_while_the_file_is_as_it_was(house: Path) -> None:
    (house / "knowledge" / "a.yaml").write_text("values: {true: 1, 2: 3}\n")
    target = compiling.write(house)
    told = json.loads(target.read_text())
    told["a.yaml"]["text"] = '{"from": "the build"}'
    target.write_text(json.dumps(told))
    assert knowledge.load_yaml("a.yaml") == {"from": "the build"}


def test_an_edited_file_wins_over_an_older_build(house: Path) -> None:
    (house / "knowledge" / "a.yaml").write_text("x: 1\n")
    compiling.write(house)
    (house / "knowledge" / "a.yaml").write_text("x: 2\n")
    assert knowledge.load_yaml("a.yaml") == {"x": 2}


@pytest.mark.parametrize("built", [None, "", "[1]", "{half"])
def test_without_a_whole_build_the_yaml_is_read(house: Path, built: str | None) -> None:
    (house / "knowledge" / "a.yaml").write_text("x: 1\n")
    if built is not None:
        (house / "advisor" / compiling.FILE).write_text(built)
    assert knowledge.load_yaml("a.yaml") == {"x": 1}


def test_what_json_cannot_hold_stays_yaml(house: Path) -> None:
    (house / "knowledge" / "a.yaml").write_text("day: 2026-01-02\n")
    assert compiling.entries(house / "knowledge") == {}
