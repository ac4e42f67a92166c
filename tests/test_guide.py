"""The guided flow with widgets, and the tour of the notebooks executed from its first cell to its last."""

import pytest

import advisor
from advisor.knowledge import load_yaml, path

pytest.importorskip("ipywidgets", reason="no ipywidgets: pip install 'training-memory-advisor[notebook]'")
TOUR = path("guides", "tour.ipynb")


def talk(name: str = "1-loss-qlora.yaml"):
    return advisor.guide(list(load_yaml("samples", name)["files"].items()))


def test_ticking_adds_up() -> None:
    guide = talk()
    first = guide.report.plan.steps[0].technique
    before = guide.sum.value
    guide.ticks[first].value = False
    assert guide.sum.value != before


def test_what_was_seen_and_what_is_stated_change_the_report() -> None:
    guide = talk()
    causes = [(f.cause, f.confidence) for f in guide.report.findings]
    mark = guide.report.follow_ups[0].mark
    guide.saw(mark)
    assert mark in guide.reading.evidence.marks and [(f.cause, f.confidence) for f in guide.report.findings] != causes
    guide.state("batch.micro_batch", 1)
    assert guide.reading.job.batch.micro_batch == 1
    guide.state("batch.micro_batch", -3)
    assert guide.reading.job.batch.micro_batch == 1 and "batch" in guide.sum.value
    guide.state("batch.micro_batch", "<img src=x>")
    assert "<img" not in guide.sum.value, "what was typed is no part of the page"


def test_i_dont_know_takes_the_question_away() -> None:
    guide = advisor.guide(
        [("error.txt", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), ("a.py", "model = from_pretrained('Qwen/Qwen2.5-7B')")]
    )
    asked = guide.report.next_question
    assert asked is not None
    count = len(guide.box.children)
    guide.leave_open(asked.text)
    assert len(guide.box.children) < count


def test_the_tour_runs() -> None:
    nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install nbclient")
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: pip install nbclient")
    pytest.importorskip("ipykernel", reason="no ipykernel: pip install ipykernel")
    notebook = nbformat.read(TOUR, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(TOUR.parent)}}).execute()
    shown = [str(o.get("data", {}).get("text/html", "")) for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert sum('class="advisor-report"' in text for text in shown) >= 3
    widgets = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]
    assert widgets
