"""What the plan may do, on the page: the plan is made again within it, and the link brings it back."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from advisor.planner.constraints import NEEDS_LIBRARY
from advisor.share import allowed_of

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"
LINK = {"v": "1", "model.name": "Qwen/Qwen2.5-7B", "method.kind": "lora", "batch.micro_batch": "16", "batch.seq_len": "4096", "hardware.gpu": "rtx4090-24gb",
        "framework.name": "trl", "activations.attention": "flash-2"}  # fmt: skip


def page(**parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60)
    for name, value in {**LINK, **parameters}.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def planned(at: AppTest) -> list[str]:
    return [step.technique for step in at.session_state.report.plan.steps]


def address(at: AppTest) -> dict[str, str]:
    return {name: value[0] if isinstance(value, list) else value for name, value in at.query_params.items()}


def captions(at: AppTest) -> str:
    return "\n".join(c.value for c in at.caption)


def test_the_plan_is_made_again_and_the_link_brings_it_back() -> None:
    at = page()
    first = planned(at)
    assert set(first) & NEEDS_LIBRARY
    assert "allow" not in address(at)
    at.checkbox(key="allow:diagnose:no_new_dependency").check().run()
    assert not at.exception
    assert planned(at) and not set(planned(at)) & NEEDS_LIBRARY
    assert "bring no new library" in captions(at)
    again = page(allow=address(at)["allow"])
    assert planned(again) == planned(at)
    assert again.checkbox(key="allow:diagnose:no_new_dependency").value is True
    at.checkbox(key="allow:diagnose:no_new_dependency").uncheck().run()
    assert planned(at) == first
    assert "allow" not in address(at)


def test_the_numbers_and_what_is_never_wanted_count() -> None:
    at = page()
    never = planned(at)[0]
    at.number_input(key="allow:diagnose:most_changes").set_value(3).run()
    at.number_input(key="allow:diagnose:margin").set_value(1.5).run()
    at.multiselect(key="allow:diagnose:exclude").set_value([never]).run()
    assert not at.exception
    said = allowed_of(address(at))
    assert said is not None
    assert (said[0].most_changes, said[0].exclude, said[1]) == (3, frozenset({never}), 3 << 29)
    assert never not in planned(at) and len(planned(at)) <= 3


def test_back_over_a_limit_keeps_the_diagnosis_and_starting_again_forgets_it() -> None:
    at = page(allow="keep:!(libraries)")
    report = at.session_state.report
    del at.query_params["allow"]
    at.run()
    assert not at.exception
    assert at.session_state.report.findings is report.findings
    assert set(planned(at)) & NEEDS_LIBRARY
    at.checkbox(key="allow:diagnose:keep_exact").check().run()
    next(b for b in at.button if b.label == "Start again").click().run()
    assert not at.exception
    assert at.session_state["allow:diagnose:keep_exact"] is False


def test_limits_that_cannot_be_read_are_named() -> None:
    at = page(allow="keep:!(everything)")
    assert any("not what a plan may do" in w.value for w in at.warning)
    assert at.session_state.report.plan.steps
