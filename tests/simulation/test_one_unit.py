"""FSDP without a wrapping policy: the sharding code gathers and reduces the whole model at once, and the estimate counts just that."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("strategy", "framework", "precision"),
    [
        ("fsdp1", "accelerate", {"weights": "fp32", "mixed": "fsdp", "reduce": "bf16"}),
        ("fsdp2", "custom", {"weights": "fp32", "mixed": "fsdp", "reduce": "fp32"}),
    ],
)
def test_estimate_and_sharding_code_agree(strategy: str, framework: str, precision: dict[str, str]) -> None:
    from advisor.arithmetic import estimate
    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.simulation import probe

    shape = {"num_hidden_layers": 6, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "vocab_size": 8192}
    run = resolve(
        read_job(
            {
                "version": 1,
                "model": {"config": {"model_type": "llama", "tie_word_embeddings": False, **shape}},
                "precision": {"compute": "bf16", **precision},
                "optimizer": {"name": "adamw", "implementation": "foreach"},
                "batch": {"micro_batch": 1, "seq_len": 64, "gradient_accumulation": 1, "packed": True},
                "activations": {"checkpointing": "full", "reentrant": False, "attention": "sdpa"},
                "parallel": {"strategy": strategy, "shard": 4, "wrap": {"blocks": "root"}},
                "hardware": {"gpu": "a100-80gb", "gpus_per_node": 4},
                "framework": {"name": framework, "versions": {"torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0"}},
            }
        )
    )
    probed, estimated = (ledger.totals()["max_allocated"].expected for ledger in (probe(run).ledger, estimate(run)))
    assert estimated == pytest.approx(probed, rel=0.01)
