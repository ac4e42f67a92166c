"""Lightning runs evaluation hooks without a graph; what they keep is kept on the card."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading.code_facts import code_facts

MODULE = """import lightning as L
class Module(L.LightningModule):
    def training_step(self, batch, index):
        return self.model(**batch).loss
    def validation_step(self, batch, index):
        out = self.model(**batch)
        {keeps}
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-5)
model = AutoModelForCausalLM.from_pretrained("EleutherAI/pythia-1b")
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 400.00 MiB. GPU 1 has a total capacity of 39.38 GiB of which 230.00 MiB is free. "
    "Of the allocated memory 37.4 GiB is allocated by PyTorch, and 1.1 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("keeps", "found"),
    [
        ("self.outs.append(out.logits)", {"keeps-on-card"}),
        ("self.outs.append(out.logits.argmax(-1).cpu())", set()),
        ("self.log('val', out.loss)", set()),
    ],
)
def test_a_hook_has_no_graph_and_keeps_what_it_appends(keeps: str, found: set[str]) -> None:
    assert {item.what for item in code_facts(MODULE.format(keeps=keeps))} == found


def test_the_list_is_the_cause() -> None:
    report = diagnose([("train.py", MODULE.format(keeps="self.outs.append(out.logits)")), ("log.txt", OOM)])
    assert report.findings[0].cause == "eval-accumulation"
    assert not any("with its graph" in str(item) for finding in report.findings for item in finding.evidence)
    assert report.plan.steps[0].technique == "eval-on-host"


def test_a_loop_of_ones_own_still_needs_no_grad() -> None:
    text = "def validate(model, loader):\n    for batch in loader:\n        out = model(batch)\nloss.backward()\n"
    assert "evaluates-with-graph" in {item.what for item in code_facts(text)}
