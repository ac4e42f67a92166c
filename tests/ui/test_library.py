"""The library: a search over a shelf, and sources that say in plain words what was not read again."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


def page(**parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/library.py")
    for name, value in parameters.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def shown(at: AppTest) -> list[str]:
    return [b.label for b in at.button if str(b.key).startswith("open:")]


def test_a_shelf_is_searched() -> None:
    at = page(kind="causes")
    everything = shown(at)
    at.text_input(key="library-look:causes").input("logits loss").run()
    assert 0 < len(shown(at)) < len(everything) and any("logits" in label for label in shown(at))
    at.text_input(key="library-look:causes").input("no such thing").run()
    assert shown(at) == [] and any("None has this" in m.value for m in at.markdown)


def test_what_was_not_read_again_says_so_in_plain_words() -> None:
    said = "\n".join(m.value for m in page(kind="techniques", page="empty-cache").markdown)
    assert "From memory: not read again" in said and "recalled" not in said.lower()
    said = "\n".join(m.value for m in page(kind="techniques", page="gradient-checkpointing").markdown)
    assert "arXiv 2205.05198" in said and "Read: abstract" in said
