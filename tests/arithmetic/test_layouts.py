"""Bytes of quantised matrices."""

from __future__ import annotations

import pytest

from advisor.arithmetic import layouts
from advisor.job import JobError
from tests.arithmetic.jobs import job


def test_a_group_over_all_inputs_has_one_scale_and_zero_an_output() -> None:
    rows, columns = 4096, 11008
    index = 4 * columns  # the group of each input
    assert layouts.constants("gptq-int4", rows, columns, double_quant=False, group=-1) == 2 * rows + rows // 2 + index
    assert layouts.constants("gptq-int4", rows, columns, double_quant=False, group=128) == 86 * (2 * rows + rows // 2) + index


def test_a_group_of_no_inputs_is_refused() -> None:
    assert job(method={"kind": "lora", "base": "gptq-int4", "group_size": -1}).method.group_size == -1
    with pytest.raises(JobError, match="-1"):
        job(method={"kind": "lora", "base": "gptq-int4", "group_size": 0})
