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


@pytest.mark.parametrize(("torchao", "elements"), [("0.1", 512 * 1408), ("0.2.0", 512 * 1408), ("0.7.0", 512 * 1408)])
def test_quantising_compares_a_matrix_with_all_sixteen_levels(torchao: str, elements: int) -> None:
    """Below a million elements the pieces of 0.2 are the whole matrix too; above, they are not."""

    def compared(width: int) -> int:
        made = job({"intermediate_size": width}, method={"kind": "lora", "base": "nf4"}, framework={"name": "torchtune", "versions": {"torchao": torchao}})
        ledger = estimate(made.but(model={"source": "torchtune"}))
        return next(h.bytes for h in ledger.holdings if h.name == "distances to all levels")

    assert compared(1408) == elements * 16 * 2 * 2
    assert compared(14080) == (512 * 14080 if torchao == "0.1" else 1024**2) * 16 * 2 * 2
