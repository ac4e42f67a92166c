"""Which rank holds how much of a 4-bit base, by whose tensor it is."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.ledger import Interval
from advisor.run import resolve
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


@pytest.mark.parametrize("hub", ["mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B"])
def test_experts_are_quantised_by_the_version_that_holds_them_as_layers(hub: str) -> None:
    """transformers 4: nn.Linear modules, quantised; 5: one 3-D parameter, left in 16 bit; where no version is named the range holds both."""
    method = {"kind": "lora", "rank": 8, "targets": "attention", "base": "nf4", "double_quant": True}

    def total(versions: dict[str, str]) -> Interval:
        made = read_job(
            {
                "version": 1,
                "model": {"name": hub},
                "method": method,
                "batch": {"micro_batch": 1, "seq_len": 1024},
                "framework": {"name": "custom", "versions": versions},
                "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"},
                "activations": {"checkpointing": "full", "attention": "flash-2"},
            }
        )
        return estimate(resolve(made)).totals()["max_allocated"]

    before, after, open_to = (total(v) for v in ({"transformers": "4.57.0"}, {"transformers": "5.24.0"}, {}))
    assert after.expected > 2.5 * before.expected
    assert open_to.expected == pytest.approx(before.expected, rel=0.02)
    assert open_to.low <= before.expected and open_to.high >= after.expected
