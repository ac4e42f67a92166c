"""Every page opens, says what it should, and leaves torch alone. Streamlit's AppTest runs them without a browser."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from advisor.knowledge import folder

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "advisor" / "ui" / "app.py"
PAGES = sorted(p.name for p in (ROOT / "pages").glob("*.py"))
SAMPLES = sorted(p.stem for p in (ROOT / "knowledge" / "samples").glob("*.yaml"))

ERROR = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.79 GiB. GPU 0 has a total capacity of 23.60 GiB of which 7.15 GiB is free. "
    "Including non-PyTorch memory, this process has 16.45 GiB memory in use. Of the allocated memory 15.83 GiB is allocated by PyTorch, "
    "and 218.51 MiB is reserved by PyTorch but unallocated."
)


def app() -> AppTest:
    return AppTest.from_file(str(APP), default_timeout=120)


def texts(at: AppTest) -> str:
    return "\n".join(str(e.value) for kind in ("markdown", "caption", "error", "warning", "success", "info") for e in getattr(at, kind))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens(page: str) -> None:
    at = app().run()
    if page != "diagnose.py":
        at.switch_page(f"../../pages/{page}").run()
    assert not at.exception
    assert len(at.title) == 1


def test_there_are_six_samples_and_each_names_its_source() -> None:
    assert len(SAMPLES) == 6
    for name in SAMPLES:
        sample = yaml.safe_load((folder("knowledge") / "samples" / f"{name}.yaml").read_text())
        assert sample["title"] and sample["says"] and sample["source"] and sample["files"]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_gives_a_verdict(name: str) -> None:
    at = app().run()
    at.button(key=f"sample:{name}").click().run()
    assert not at.exception
    assert at.session_state.report.verdict == "ooms"
    assert len(at.error) == 1


def test_pasted_text_gives_a_report_and_starting_again_takes_it_away() -> None:
    at = app().run()
    at.text_area(key="pasted").input(ERROR)
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert not at.exception
    assert at.session_state.report.verdict == "ooms"
    next(b for b in at.button if b.label == "Start again").click().run()
    assert not at.exception
    assert "report" not in at.session_state


def test_nothing_pasted_is_said_calmly() -> None:
    at = app().run()
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert not at.exception
    assert "Paste something" in at.warning[0].value


def test_text_from_a_log_is_no_markdown() -> None:
    at = app().run()
    at.text_area(key="pasted").input("RuntimeError: CUDA out of memory. **bold** <script>alert(1)</script> [x](javascript:1)\nmystery_key: '**loud**'\n")
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert not at.exception
    assert "<script>" not in texts(at)


@pytest.mark.parametrize(
    "text", ["shall I compare thee", '{"version": 1, "model": {"na', "[" * 50_000, bytes(range(256)).decode("latin1"), "batch_size: $5$ :material/x: ~~x~~"]
)
def test_bad_input_is_a_calm_page(text: str) -> None:
    at = app().run()
    at.text_area(key="pasted").input(text)
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert not at.exception
    assert at.session_state.report.verdict in ("unreadable", "incomplete")


def test_a_link_brings_the_diagnosis_back() -> None:
    at = app().run()
    at.button(key=f"sample:{SAMPLES[0]}").click().run()
    first = at.session_state.report
    again = app()
    for name, value in at.session_state.address.items():
        again.query_params[name] = value
    again.run()
    assert not again.exception
    second = again.session_state.report
    assert (second.verdict, [f.cause for f in second.findings[:1]]) == (first.verdict, [f.cause for f in first.findings[:1]])


def test_a_tampered_link_says_what_was_dropped() -> None:
    at = app()
    for name, value in {"v": "1", "batch.micro_batch": "-4", "layers": "1000000000000", "model.name": "meta-llama/Llama-3.1-8B"}.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    said = " ".join(w.value for w in at.warning)
    assert "batch.micro" in said and "layers" in said


def test_a_link_can_be_pasted_like_anything_else() -> None:
    at = app().run()
    at.text_area(key="pasted").input("https://advisor.example/?v=1&model.name=meta-llama/Llama-3.1-8B&error=gpu-memory&error.allocated=15.83GiB").run()
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert not at.exception
    assert at.session_state.report.verdict == "ooms"
    assert at.session_state.reading.job.model.name == "meta-llama/Llama-3.1-8B"


def sample(name: str) -> AppTest:
    at = app().run()
    at.button(key=f"sample:{name}").click().run()
    return at


def test_unticking_a_change_takes_it_out_of_the_sum() -> None:
    at = sample("3-dpo-zero2")
    before = next(m.value for m in at.markdown if "ticked" in m.value)
    step = next(box for box in at.checkbox if box.value)
    step.uncheck().run()
    assert not at.exception
    after = next(m.value for m in at.markdown if "ticked" in m.value)
    assert after != before


def test_an_assumption_put_right_becomes_a_stated_fact() -> None:
    at = sample("3-dpo-zero2")
    at.session_state["chip:hardware.nodes"] = True
    at.run().number_input(key="fact:hardware.nodes").set_value(2).run()
    assert not at.exception
    assert at.session_state.reading.job.hardware.nodes == 2
    assert any(f.field == "hardware.nodes" and f.kind == "stated" for f in at.session_state.report.read)
    assert at.session_state.address["hardware.nodes"] == "2"


def test_the_question_is_answered_and_not_asked_again() -> None:
    at = app().run()
    at.text_area(key="pasted").input(
        "model = AutoModelForCausalLM.from_pretrained('meta-llama/Llama-3.1-8B')\nargs = TrainingArguments(per_device_train_batch_size=2)\n" + ERROR
    )
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert not at.exception
    asked = at.session_state.report.next_question
    assert asked is not None
    answer = asked.options[0] if asked.options else 2048
    widget = next(w for kind in ("button_group", "select_slider", "selectbox", "number_input") for w in getattr(at, kind) if w.key == f"ask:{asked.field}")
    widget.set_value(answer).run()
    assert not at.exception
    assert at.session_state.reading.job.get(asked.field) == answer
    after = at.session_state.report.next_question
    assert after is None or after.field != asked.field


def test_explore_moves_the_estimate() -> None:
    at = app().run()
    at.switch_page("../../pages/explore.py").run()
    before = at.metric[0].value
    at.select_slider(key="explore:batch.seq_len").set_value(32768).run()
    assert not at.exception
    assert at.session_state.explored.batch.seq_len == 32768
    assert at.metric[0].value != before


def test_an_explored_job_is_what_diagnose_shared() -> None:
    at = app().run()
    at.switch_page("../../pages/explore.py")
    for name, value in {"v": "1", "model.name": "Qwen/Qwen2.5-7B", "batch.micro_batch": "3"}.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    assert (at.session_state.explored.model.name, at.session_state.explored.batch.micro_batch) == ("Qwen/Qwen2.5-7B", 3)


@pytest.mark.parametrize("kind", ["causes", "techniques", "cards", "models", "frameworks"])
def test_each_shelf_of_the_library_opens(kind: str) -> None:
    at = app().run()
    at.switch_page("../../pages/library.py")
    at.query_params["kind"] = kind
    at.run()
    assert not at.exception
    at.query_params["page"] = "no-such-page"
    at.run()
    assert not at.exception


def test_the_server_never_loads_torch() -> None:
    script = (
        "import sys; from streamlit.testing.v1 import AppTest\n"
        f"at = AppTest.from_file({str(APP)!r}, default_timeout=120).run()\n"
        f"at.button(key='sample:{SAMPLES[0]}').click().run(); assert not at.exception\n"
        f"for page in {PAGES!r}:\n"
        "    at.switch_page('../../pages/' + page).run(); assert not at.exception, page\n"
        "heavy = {'torch', 'transformers', 'peft'} & set(sys.modules); assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def test_ticked_changes_are_a_diff_of_what_was_pasted() -> None:
    at = app().run()
    at.session_state["own-files"] = True
    at.button(key="sample:1-loss-qlora").click().run()
    assert not at.exception
    diffs = [c.value for c in at.code if c.value.startswith("--- a/args.py")]
    assert diffs and "use_liger_kernel=True" in diffs[0]


def test_what_a_second_try_showed_is_one_click_and_travels() -> None:
    at = sample("1-loss-qlora")
    first = {f.cause: f.confidence for f in at.session_state.report.findings}
    offered = at.session_state.report.follow_ups
    assert offered
    at.button(key=f"seen:{offered[0].mark}").click().run()
    assert not at.exception
    assert offered[0].mark in at.session_state.reading.evidence.marks
    assert offered[0].mark in at.session_state.address["marks"]
    assert {f.cause: f.confidence for f in at.session_state.report.findings} != first
    assert offered[0].mark not in {s.mark for s in at.session_state.report.follow_ups}


def test_a_question_about_what_was_seen_is_answered_or_left_open() -> None:
    at = app().run()
    at.text_area(key="pasted").input("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.60 GiB").run()
    next(b for b in at.button if b.label == "Diagnose").click().run()
    asked = at.session_state.report.next_question
    assert asked is not None and asked.answers
    at.button(key="seen:unknown").click().run()
    assert not at.exception and not any(b.key == f"seen:{asked.answers[0].mark}" and b.label == asked.answers[0].says for b in at.button)


@pytest.mark.parametrize(("kind", "name", "column"), [("models", None, "Source"), ("frameworks", None, "Source"), ("frameworks", "trl", None)])
def test_every_list_of_the_library_says_where_it_was_read(kind: str, name: str | None, column: str | None) -> None:
    at = app().run()
    at.switch_page("../../pages/library.py")
    at.query_params["kind"] = kind
    if name:
        at.query_params["page"] = name
    at.run()
    assert not at.exception
    if column:
        listed = at.dataframe[0].value
        assert listed[column].str.len().gt(3).all(), listed[listed[column].str.len() <= 3]
    else:
        assert "per_device" in texts(at) or "precompute" in texts(at)
        assert "Source: trl" in texts(at)


def test_nothing_is_said_to_be_left_of_a_card_that_was_full() -> None:
    from advisor.views.verdict import left_over

    assert left_over(74 * 2**30, 79 * 2**30, "ooms") == "5.0 GiB above the estimate"
    assert left_over(74 * 2**30, 79 * 2**30, "fits") == "5.0 GiB left"
    assert left_over(84 * 2**30, 79 * 2**30, "ooms") == "5.0 GiB too little"
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    for key in [str(b.key) for b in at.button if str(b.key).startswith("sample:")]:
        again = AppTest.from_file(str(APP), default_timeout=60).run()
        again.button(key=key).click().run()
        if again.error:
            assert not any("left" in str(m.delta) for m in again.metric), key


def pasted(text: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.text_area(key="pasted").input(text)
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert not at.exception
    return at


def test_an_action_is_no_box_that_cannot_be_ticked() -> None:
    at = pasted("RuntimeError: DataLoader worker (pid 1234) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.")
    assert any(m.value.startswith("**1. Give the container more shared memory") for m in at.markdown)
    assert not [box for box in at.checkbox if box.disabled and str(box.key).startswith("tick:")]
    assert sum("[no estimate]" in m.value for m in at.markdown) == 1, "once"


def test_what_is_no_memory_error_is_not_asked_for_assumptions() -> None:
    at = pasted("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x4096 and 1024x512)")
    heads = [h.value for h in at.header]
    assert "What was assumed" not in heads and not any("change" in h for h in heads) and "Take it with you" in heads


def test_a_second_step_that_is_a_choice_is_not_said_to_come_after() -> None:
    at = app().run()
    at.button(key="sample:5-card-not-empty").click().run()
    first = next(m.value for m in at.markdown if "Change first:" in m.value)
    assert "Or another in its place." in first and "after it" not in first
    at = app().run()
    at.button(key="sample:1-loss-qlora").click().run()
    assert "1 more change after it." in next(m.value for m in at.markdown if "Change first:" in m.value)


def test_a_ticked_change_whose_box_is_folded_away_is_named_in_the_sum() -> None:
    at = app().run()
    at.button(key="sample:3-dpo-zero2").click().run()
    assert any("**With 1 ticked:**" in m.value for m in at.markdown)
    at.session_state["tick:zero-3"] = True
    at.run()
    assert not at.exception
    assert any("**With 2 ticked, of the other changes ZeRO-3:**" in m.value for m in at.markdown)


def test_a_models_config_is_answered_by_pasting_it() -> None:
    config = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 22016, "num_attention_heads": 64, "num_hidden_layers": 80,
              "vocab_size": 32000, "_name_or_path": "/home/me/llama"}  # fmt: skip
    at = app().run()
    launch = (
        "accelerate launch --num_processes 4 src/train_sft.py --model_name_or_path our-org/our-65b --finetuning_type lora --per_device_train_batch_size 1\n"
    )
    at.text_area(key="pasted").input(launch + ERROR)
    next(b for b in at.button if b.label == "Diagnose").click().run()
    assert at.session_state.report.next_question.field == "model.config" and not at.metric
    at.text_input(key="ask:model.config").input(json.dumps(config)).run()
    assert not at.exception and not at.warning
    assert at.session_state.report.run.job.model.config["hidden_size"] == 8192 and "/home/me" not in str(dict(at.query_params))
    assert any("Needed" in m.label for m in at.metric), "now it is estimated"
