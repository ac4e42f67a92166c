"""A team's own lessons and house rules: read from its folder, held to their form, and shown on the pages."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor import lessons, team
from advisor.job import read_job
from advisor.knowledge import KnowledgeError, path
from advisor.run import resolve

APP = Path(__file__).resolve().parents[1] / "advisor" / "ui" / "app.py"
RULES = """
- {field: parallel.strategy, is: [fsdp2, zero3], says: We divide every model.}
- {field: batch.micro_batch, at_most: 4, says: Larger ones starve the data loader.}
- {field: precision.weights, is_not: [fp16], says: fp16 overflows in our models.}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "our-outage.md").write_text(path("lessons", "3-copies-and-layouts.md").read_text().replace("title: ", "title: Ours, "))
    (tmp_path / "rules.yaml").write_text(RULES)
    monkeypatch.setenv(team.VARIABLE, str(tmp_path))
    return tmp_path


def run_with(**sections: object):
    return resolve(read_job({"version": 1, "model": {"name": "Qwen/Qwen2.5-0.5B"}, "batch": {"micro_batch": 8, "seq_len": 512}, **sections}))


def test_a_run_is_held_to_the_rules(folder: Path) -> None:
    found = {field for field, _, _ in team.broken(run_with(parallel={"strategy": "ddp"}, precision={"weights": "bf16"}))}
    assert found == {"parallel.strategy", "batch.micro_batch"}
    kept = run_with(parallel={"strategy": "fsdp2", "shard": 8}, precision={"weights": "fp16"}, batch={"micro_batch": 4, "seq_len": 512})
    assert {field for field, _, _ in team.broken(kept)} == {"precision.weights"}


@pytest.mark.parametrize(
    "text", ["- {field: no.such, says: x}", "- {field: batch.micro_batch}", "just text", "- [", "- {field: reference, is: none, extra: 1, says: x}"]
)
def test_a_bad_file_of_rules_says_so(folder: Path, text: str) -> None:
    bad = folder / "bad" / "rules.yaml"
    bad.parent.mkdir()
    bad.write_text(text)
    with pytest.raises(KnowledgeError, match=r"rules\.yaml"):
        team._rules(bad)


def test_without_a_folder_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(team.VARIABLE, raising=False)
    assert team.lessons() == () and team.broken(run_with()) == ()


def test_a_lesson_of_the_team_is_one_of_the_lessons(folder: Path) -> None:
    assert lessons.names()[-1] == "team-our-outage"
    assert lessons.lesson("team-our-outage").title.startswith("Ours, ")
    (folder / "lessons" / "our-outage.md").write_text("no front matter")
    with pytest.raises(KnowledgeError, match="our-outage"):
        lessons.lesson("team-our-outage")


def test_a_recorded_step_lies_beside_the_teams_lesson(folder: Path) -> None:
    (folder / "lessons" / "ours.json").write_text('{"says": "our run", "source": "us", "frames": [["forward", {"weights": 5}, "", 0]]}')
    says, _, frames = lessons.recorded("ours.json")
    assert says == "our run" and frames[0].bytes == 5
    for name, text in (("missing.json", None), ("empty.json", "{}"), ("list.json", "[]")):
        if text is not None:
            (folder / "lessons" / name).write_text(text)
        with pytest.raises(KnowledgeError, match=name):
            lessons.recorded(name)


def test_the_pages_show_both(folder: Path) -> None:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.button(key="sample:3-dpo-zero2").click().run()
    assert not at.exception
    assert any("We divide every model" in m.value for m in at.markdown)
    at.switch_page("../../pages/learn.py").run()
    at.button(key="learn-open:team-our-outage").click().run()
    assert not at.exception and "Ours, " in at.header[0].value
