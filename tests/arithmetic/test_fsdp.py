"""Sharded training against closed forms and figures that real sharding code gave."""

from __future__ import annotations

import pytest

from advisor.architecture import presets
from advisor.arithmetic import estimate
from advisor.ledger import Ledger
from advisor.units import GIB
from tests.arithmetic.jobs import job

FP32 = {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "gradients": "fp32", "reduce": "fp32"}
LLAMA_8B = {
    "hidden_size": 4096, "num_hidden_layers": 3, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def sizes(ledger: Ledger, moment: str) -> dict[str, int]:
    return {h.name: h.bytes for h in ledger.alive(moment)}


def test_root_reduction_of_fsdp2_as_simulated() -> None:
    """Three layers of an 8B Llama over 8 ranks: 9,188,752,064 bytes with real fully_shard under fake tensors, activations aside."""
    ledger = estimate(job(LLAMA_8B, precision=FP32, optimizer={"states": "fp32"}, parallel={"strategy": "fsdp2", "shard": 8, "reshard_after_forward": True}))
    counted = sum(h.bytes for h in ledger.alive("backward.root") if h.part in ("weights", "gradients", "optimizer", "communication"))
    assert counted == pytest.approx(9_188_752_064, rel=0.002)


def test_step_of_fsdp1_is_shards_states_and_the_foreach_temporary() -> None:
    """Mistral-7B in bf16 over two A100: 36,225,939,968 bytes measured (fms-acceleration), 5 x 2 bytes a parameter over two ranks and workspaces."""
    mistral = {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "num_attention_heads": 32}
    ledger = estimate(
        job({**mistral, "num_key_value_heads": 8, "vocab_size": 32000}, parallel={"strategy": "fsdp1", "shard": 2}, batch={"micro_batch": 2, "seq_len": 4096})
    )
    assert ledger.peak().moment.id == "step.update"
    assert ledger.peak().bytes == pytest.approx(36_225_939_968, rel=0.0005)


def test_frozen_weights_get_gradients_where_they_share_a_flat_parameter() -> None:
    lora = {"kind": "lora", "rank": 8, "targets": "attention", "adapter_dtype": "bf16"}
    parallel = {"strategy": "fsdp1", "shard": 4}
    apart = estimate(job(method=lora, parallel={**parallel, "wrap": {"adapters": "apart"}}))
    together = estimate(job(method=lora, parallel={**parallel, "wrap": {"adapters": "together"}}))
    assert together.by_part("step.update")["gradients"] > 20 * apart.by_part("step.update")["gradients"]


def test_gradients_stay_whole_without_synchronisation() -> None:
    accumulating = {"gradient_accumulation": 8}
    parallel = {"strategy": "fsdp1", "shard": 8}
    kept = estimate(job(batch=accumulating, parallel={**parallel, "sync_each_microbatch": False}))
    synced = estimate(job(batch=accumulating, parallel={**parallel, "sync_each_microbatch": True}))
    assert kept.by_part("forward.blocks")["gradients"] == pytest.approx(8 * synced.by_part("forward.blocks")["gradients"], rel=0.01)


def test_hooks_keep_recomputed_inputs_of_frozen_units() -> None:
    lora = {"kind": "lora", "rank": 8, "targets": "attention"}
    parallel = {"strategy": "fsdp1", "shard": 2, "wrap": {"adapters": "apart"}}
    old = {"versions": {"transformers": "4.48.1"}}
    kept = sizes(estimate(job(method=lora, parallel=parallel, framework=old)), "backward.first-block")
    itself = {"versions": {"transformers": "4.56.0"}}  # blocks checkpoint themselves
    newer = sizes(estimate(job(method=lora, parallel=parallel, framework=itself)), "backward.first-block")
    free = sizes(estimate(job(method=lora, parallel=parallel, framework={"versions": {"transformers": "5.0.0"}})), "backward.first-block")
    assert kept["gradients of blocks' inputs kept by FSDP's hooks"] == 4 * 1024 * 512 * 2  # of six blocks: all but the first's, and its output's
    assert kept["recomputed blocks' inputs kept by FSDP's hooks"] == 5 * 1024 * 512 * 2
    assert not any("hooks" in name for name in (*free, *newer))


def test_adapters_with_dropout_under_fsdp1_as_measured() -> None:
    """Mistral-7B, two A100, TRL 0.13, transformers 4.48.1, torch 2.4.1: fms-acceleration's benchmark with dropout 0.1, adapters wrapped apart."""
    mistral = {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "num_attention_heads": 32}
    ledger = estimate(
        job(
            {**mistral, "num_key_value_heads": 8, "vocab_size": 32000},
            method={"kind": "lora", "rank": 16, "dropout": 0.1, "targets": "attention"},
            parallel={"strategy": "fsdp1", "shard": 2, "wrap": {"adapters": "apart"}},
            batch={"micro_batch": 2, "seq_len": 4096},
            optimizer={"states": "fp32"},
            framework={"name": "trl", "versions": {"torch": "2.4.1", "transformers": "4.48.1", "peft": "0.13.2"}},
        )
    )
    assert ledger.peak().moment.id == "backward.first-block"
    assert ledger.peak().bytes == pytest.approx(15_144_870_400, rel=0.0005)


def test_what_waits_for_another_stream_is_reserved_and_not_allocated() -> None:
    """A gathered unit more, its gradient, and where the reduction is in another dtype two casts of a unit and one of the larger root."""
    parallel = {"strategy": "fsdp1", "shard": 8, "prefetch": "backward-pre"}
    fp32, same = (estimate(job(LLAMA_8B, precision={**FP32, "reduce": reduce}, optimizer={"states": "fp32"}, parallel=parallel)) for reduce in ("fp32", "bf16"))
    block = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 4096
    root = 2 * 128256 * 4096 + 4096
    late = [next(h for h in ledger.holdings if h.part == "allocator").values["freed_late"] for ledger in (fp32, same)]
    assert late == [2 * 2 * block + 4 * (2 * block + root), 2 * 2 * block]
    assert fp32.peak().bytes == same.peak().bytes
    frozen = {"kind": "lora", "rank": 8, "targets": "attention", "adapter_dtype": "bf16"}
    adapted = estimate(job(LLAMA_8B, method=frozen, parallel={**parallel, "wrap": {"adapters": "apart"}}))
    assert next(h for h in adapted.holdings if h.part == "allocator").values["freed_late"] == pytest.approx(2 * block, rel=0.01)


BF16 = {"weights": "bf16", "compute": "bf16", "mixed": "none", "gradients": "bf16"}


@pytest.mark.parametrize("wrap", ["own unit", "root"])
def test_one_rank_of_fsdp1_gathers_nothing_unless_a_policy_wants_another_dtype(wrap: str) -> None:
    parallel = {"strategy": "fsdp1", "shard": 1, "wrap": {"blocks": wrap}}
    assert not [h.name for h in estimate(job(LLAMA_8B, precision=BF16, parallel=parallel)).holdings if h.part == "communication"]
    assert [h.name for h in estimate(job(LLAMA_8B, precision=FP32, parallel=parallel)).holdings if h.part == "communication"]
    assert [h.name for h in estimate(job(LLAMA_8B, precision=BF16, parallel={**parallel, "shard": 2})).holdings if h.part == "communication"]


def test_one_rank_of_fsdp2_copies_parameters_without_a_buffer() -> None:
    for ranks, buffers in ((1, 0), (2, 1)):
        ledger = estimate(job(LLAMA_8B, precision=BF16, parallel={"strategy": "fsdp2", "shard": ranks, "wrap": {"blocks": "root"}}))
        names = [h.name for h in ledger.holdings if h.part == "communication"]
        assert "the whole model, gathered as one unit" in names
        assert sum("buffer" in name for name in names) == buffers


@pytest.mark.parametrize(("offload", "gib"), [({}, 17.180), (dict.fromkeys(("parameters", "gradients", "optimizer"), "cpu"), 5.768)], ids=["device", "host"])
def test_a_blocks_whole_gradients_are_born_one_by_one_under_fsdp2(offload: dict[str, str], gib: float) -> None:
    """Figures of the probe: Mistral 7B on 8 ranks, accelerate's units. With shards on the host a block of the middle decides, else the second one."""
    preset = presets.find("mistralai/Mistral-7B-v0.1")
    assert preset is not None
    run = job(
        dict(preset.config), precision=FP32,
        optimizer={"name": "adamw", "states": "fp32", "implementation": "foreach"}, parallel={"strategy": "fsdp2", "shard": 8, "replicate": 1},
        activations={"checkpointing": "full", "reentrant": False, "attention": "flash-2"}, batch={"micro_batch": 4, "seq_len": 2048}, offload=offload,
        framework={"name": "hf-trainer", "versions": {"torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0"}},
        hardware={"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 1},
    )  # fmt: skip
    assert estimate(run).peak().bytes / GIB == pytest.approx(gib, rel=0.012)
