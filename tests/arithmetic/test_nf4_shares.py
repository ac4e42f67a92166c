"""Which rank holds how much of a 4-bit base, by whose tensor it is."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from tests.arithmetic.jobs import job


@pytest.mark.parametrize(("source", "framework", "ranks"), [("torchtune", "torchtune", 4), ("huggingface", "custom", 1)])
def test_constants_of_nf4_are_divided_where_torchao_holds_them(source: str, framework: str, ranks: int) -> None:
    """torchao NF4Tensor.fsdp_pre_all_gather gathers scalers and factors with the data; bitsandbytes' QuantState is no parameter."""
    method = {"kind": "lora", "rank": 8, "targets": "attention", "base": "nf4", "double_quant": True}

    def constants(shard: int) -> float:
        parallel = {"strategy": "fsdp2" if shard > 1 else "none", "shard": shard}
        ledger = estimate(job(model={"source": source}, method=method, parallel=parallel, framework={"name": framework}))
        (base,) = (h for h in ledger.holdings if h.name == "base in nf4")
        return float(base.values["constants_bytes"])

    assert constants(4) == pytest.approx(constants(1) / ranks, rel=1e-3)
