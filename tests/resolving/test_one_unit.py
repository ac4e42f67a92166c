"""FSDP1 without a wrap policy is one unit, and the report says so."""

from __future__ import annotations

import pytest

from advisor.reading import read
from advisor.resolving.contradictions import contradictions
from advisor.run import resolve

SCRIPT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = AutoModelForCausalLM.from_pretrained('gpt2-xl')\n{}\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("model = FSDP(model, device_id=0)", True),
        ("model = FullyShardedDataParallel(model)", True),
        ("model = FSDP(model, auto_wrap_policy=policy)", False),
        ("for i, layer in enumerate(layers):\n    layers[i] = FSDP(layer)\nmodel = FSDP(model)", False),
        ("with enable_wrap(wrapper_cls=FSDP):\n    model = wrap(model)", False),
        ("model = DistributedDataParallel(model)", False),
    ],
)
def test_a_model_that_is_one_unit_is_said(lines: str, said: bool) -> None:
    found = read([("train.py", SCRIPT.format(lines))])
    assert any("one unit" in sentence for sentence in contradictions(resolve(found.job, found.evidence))) is said
