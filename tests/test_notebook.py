"""Objects that show themselves, and the cell magic: explains, and lets go of what the exception held."""

import gc
import sys
import traceback
import weakref
from types import SimpleNamespace

import pytest

import advisor
from advisor import notebook
from advisor.job import read_job
from advisor.run import resolve

JOB = {
    "version": 1, "model": {"name": "Qwen/Qwen2.5-7B"}, "method": {"kind": "full"}, "precision": {"weights": "bf16"}, "optimizer": {"name": "adamw"},
    "batch": {"micro_batch": 4, "seq_len": 2048}, "activations": {"checkpointing": "full"}, "hardware": {"gpu": "a100-80gb"},
}  # fmt: skip
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class Tensor:
    """Something that an exception's frame may hold."""


def test_ledger_plan_and_report_show_themselves() -> None:
    run = resolve(read_job(JOB))
    for shown in (
        advisor.estimate(run),
        advisor.plan(run),
        advisor.diagnose([("error.txt", f"torch.OutOfMemoryError: {OOM} <script>"), ("job.yaml", str(JOB))]),
    ):
        text = shown._repr_html_()
        assert text.startswith('<div class="advisor-report">') and text.endswith("</div>")
        assert "<script" not in text and "<body" not in text and "GiB" in text
        assert len(notebook.text_of(shown).splitlines()) > 2 or "plan" in notebook.text_of(shown)


def failing(held: list[weakref.ref[Tensor]]) -> None:
    activations = Tensor()
    held.append(weakref.ref(activations))
    raise OutOfMemoryError(OOM)


def caught() -> tuple[BaseException, weakref.ref[Tensor]]:
    held: list[weakref.ref[Tensor]] = []
    try:
        failing(held)
    except OutOfMemoryError as error:
        return error, held[0]
    raise AssertionError


def test_release_frees_what_the_frames_held() -> None:
    error, held = caught()
    copies = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]  # as IPython does when it prints
    gc.collect()
    assert held() is not None
    sys.last_value = error
    notebook.release(error)
    assert copies and held() is None and not hasattr(sys, "last_value")


def test_only_memory_errors_are_taken() -> None:
    assert notebook.is_out_of_memory(OutOfMemoryError("x")) and notebook.is_out_of_memory(RuntimeError(f"x: {OOM}"))
    assert not notebook.is_out_of_memory(ValueError("x"))


class Shell:
    """As much of IPython's shell as the extension uses."""

    def __init__(self) -> None:
        self.user_ns: dict[str, object] = {"In": ["", "args = TrainingArguments(per_device_train_batch_size=8, bf16=True)", "%%advise"]}
        self.magics: dict[str, object] = {}

    def register_magic_function(self, function: object, kind: str, name: str) -> None:
        self.magics[f"{kind}:{name}"] = function

    def run_cell(self, cell: str) -> SimpleNamespace:
        try:
            exec(cell, self.user_ns)
        except Exception as error:
            return SimpleNamespace(error_in_exec=error)
        return SimpleNamespace(error_in_exec=None)


def test_the_magic_explains_with_the_settings_of_earlier_cells() -> None:
    shell = Shell()
    shell.user_ns["failing"], shell.user_ns["held"] = failing, []
    notebook.load_ipython_extension(shell)
    advise = shell.magics["cell:advise"]
    report = advise("", "%matplotlib inline\n".replace("%", "#") + "failing(held)")
    assert report.verdict == "ooms"
    assert report.run.job.batch.micro_batch == 8
    assert shell.user_ns["held"][0]() is None
    assert advise("", "1 + 1") is None and advise("", "1 / 0") is None


def test_an_error_that_an_earlier_cell_quotes_is_not_the_one_that_was_raised() -> None:
    shell = Shell()
    quoted = 'OLD = """torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.79 GiB. GPU 0 has a total capacity of 23.60 GiB."""'
    shell.user_ns["In"].insert(1, quoted)  # type: ignore[attr-defined]  # a list
    notebook.load_ipython_extension(shell)
    report = shell.magics["cell:advise"]("", 'raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB")')  # type: ignore[operator]
    assert [f.requested_bytes for f in report.evidence.failures] == [2 * 1024**3]


def test_in_ipython() -> None:
    ipython = pytest.importorskip("IPython.testing.globalipapp", reason="IPython is not installed: pip install ipython")
    shell = ipython.start_ipython() or ipython.get_ipython()
    shell.run_line_magic("load_ext", "advisor.notebook")
    shell.user_ns["failing"], shell.user_ns["held"] = failing, []
    result = shell.run_cell("%%advise\nfailing(held)", store_history=True)
    assert result.success and shell.user_ns["_"].verdict == "ooms"
    shown = shell.display_formatter.format(shell.user_ns["_"])[0]
    assert "Report(" not in shown["text/plain"] and "memory" in shown["text/plain"]
    gc.collect()
    assert shell.user_ns["held"][0]() is None


def test_print_shows_what_a_terminal_does() -> None:
    report = advisor.diagnose("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert str(report) == notebook.text_of(report) and "Struct" not in str(report) and "Evidence(" not in str(report)
    assert str(report.plan) == notebook.text_of(report.plan)
