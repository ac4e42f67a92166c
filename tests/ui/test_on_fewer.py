"""Fewer cards, on the page: looked for when it is opened, and only where the question has an answer."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor.views import fewer

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"
LINK = {"v": "1", "model.name": "meta-llama/Llama-3.1-8B", "method.kind": "full", "batch.micro_batch": "4", "batch.seq_len": "4096",
        "hardware.gpu": "h100-80gb", "hardware.gpus_per_node": "8", "framework.name": "trl", "activations.attention": "flash-2",
        "activations.checkpointing": "full", "parallel.strategy": "fsdp2", "parallel.shard": "8"}  # fmt: skip
ONE = {"hardware.gpus_per_node": "1", "parallel.strategy": "none", "parallel.shard": "1", "method.kind": "lora"}


def page(*, opened: bool, **parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60)
    for name, value in {**LINK, **parameters}.items():
        at.query_params[name] = value
    at.session_state["fewer-cards"] = opened
    at.run()
    assert not at.exception
    return at


def said(at: AppTest) -> str:
    return "\n".join(m.value for m in at.markdown)


def box(at: AppTest) -> bool:
    return any(e.label == "What would hold it on fewer cards" for e in at.expander)


def test_it_is_worked_out_only_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(fewer, "fewer_cards", lambda run, plan, **how: asked.append(run))
    assert box(page(opened=False)) and not asked
    page(opened=True)
    assert len(asked) == 1


def test_the_answer_names_cards_changes_and_time() -> None:
    at = page(opened=True)
    assert "It fits on 1 of the 8 cards" in said(at) and "with nothing more on the host" in said(at) and "times as long" in said(at)
    assert any("gradient_accumulation_steps" in c.value for c in at.code)


def test_its_answer_keeps_to_the_limits() -> None:
    at = page(opened=True, allow="keep:!(libraries),without:!(offload-parameters,offload-optimizer,offload-nvme,offload-activations,paged-optimizer)")
    assert "It fits on 1 of the 8" not in said(at) and "8-bit" not in "\n".join(m for m in said(at).splitlines() if "It fits on" in m)


def test_one_card_is_not_asked() -> None:
    assert not box(page(opened=True, **ONE))
