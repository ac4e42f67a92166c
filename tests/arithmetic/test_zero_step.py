"""DeepSpeed beyond its shards: what a step joins and widens, masters in 16 bit, weights that autograd keeps, the engine without ZeRO."""

from __future__ import annotations

from typing import Any

import pytest

from advisor import estimate
from advisor.ledger import Ledger

GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 512, "n_layer": 6, "n_head": 8, "n_inner": 2048, "n_positions": 512, "vocab_size": 8000, "tie_word_embeddings": False,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip
MATRICES = 6 * 12 * 512 * 512  # linear weights of the blocks


def job(**sections: dict[str, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {
        "version": 1,
        "model": {"name": "small", "config": GPT2, "source": "remote-code"},
        "method": {"kind": "full"},
        "objective": "pretrain",
        "precision": {"weights": "bf16", "compute": "bf16", "mixed": "deepspeed", "master": "fp32", "gradients": "bf16"},
        "optimizer": {"name": "adamw", "states": "fp32", "implementation": "multi-tensor"},
        "batch": {"micro_batch": 1, "seq_len": 512, "gradient_accumulation": 1, "packed": True},
        "activations": {"checkpointing": "none", "attention": "sdpa", "loss": "full"},
        "parallel": {"strategy": "zero3", "shard": 4, "bucket_elements": 1_000_000, "persistence_elements": 0},
        "framework": {"name": "deepspeed", "versions": {"deepspeed": "0.18.3"}},
    }
    for name, section in sections.items():
        written[name] = {**written.get(name, {}), **section}
    return written


def named(ledger: Ledger, part: str, word: str, moment: str) -> int:
    return sum(h.bytes for h in ledger.holdings if h.part == part and word in h.name and moment in h.moments and h.device == "gpu")


def elements(ledger: Ledger) -> int:
    return int(next(h.values["elements"] for h in ledger.holdings if h.part == "optimizer" and "states" in h.name))


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_a_step_joins_the_gradients_before_it_widens_them(strategy: str) -> None:
    """``flatten(averaged_gradients).to(fp32)``: the joined 16-bit tensor lives while the fp32 one is written."""
    ledger = estimate(job(parallel={"strategy": strategy}))
    share = elements(ledger) / 4
    assert named(ledger, "gradients", "fp32 gradients", "step.update") == pytest.approx(4 * share, rel=0.001)
    assert named(ledger, "gradients", "joined", "step.update") == pytest.approx(2 * share, rel=0.001)
    assert named(ledger, "gradients", "partition", "step.update") == pytest.approx(2 * share, rel=0.001)


def test_of_the_joined_gradients_and_the_updates_temporaries_only_the_larger_counts() -> None:
    """foreach's square root (4 bytes) comes after the joined tensor and stage 2's partition (2 + 2 bytes) are gone."""
    ledger = estimate(job(parallel={"strategy": "zero2"}, optimizer={"implementation": "foreach"}))
    share = elements(ledger) / 4
    assert named(ledger, "gradients", "", "step.update") == pytest.approx(4 * share, rel=0.001)
    assert named(ledger, "optimizer", "temporary", "step.update") == pytest.approx(4 * share, rel=0.001)


def test_states_in_16_bit_mean_masters_in_16_bit() -> None:
    """deepspeed runtime/base_optimizer.py: bf16_optimizer_states requires bf16_master_weights_and_grads; nothing is widened for the step then."""
    wide = estimate(job())
    narrow = estimate(job(precision={"master": "none"}, optimizer={"states": "bf16"}))
    share = elements(wide) / 4
    assert named(wide, "weights", "masters", "step.update") == pytest.approx(4 * share, rel=0.001)
    assert named(narrow, "weights", "masters", "step.update") == pytest.approx(2 * share, rel=0.001)
    assert named(narrow, "gradients", "fp32", "step.update") == 0
    assert named(narrow, "gradients", "joined", "step.update") == pytest.approx(2 * share, rel=0.001)


@pytest.mark.parametrize(
    ("version", "whole", "checkpointing", "kept"),
    [("0.18.3", True, "none", True), ("0.19.4", True, "none", False), ("0.18.3", False, "none", False), ("0.18.3", True, "full", False)],
)
def test_autograd_keeps_gathered_weights_of_a_model_built_before_the_engine(version: str, whole: bool, checkpointing: str, kept: bool) -> None:
    """deepspeed pull request 8189: until 0.19.4 only zero.Init replaced the linear function that saves a view of its weight."""
    ledger = estimate(
        job(
            load={"move_before_sharding": whole},
            framework={"versions": {"deepspeed": version}},
            activations={"checkpointing": checkpointing},
        )
    )
    held = named(ledger, "communication", "autograd keeps", "loss.backward")
    assert held == (2 * (MATRICES + 8000 * 512) if kept else 0)


def test_torch_saves_the_weight_of_a_linear_layer_and_both_sides_of_a_maximum() -> None:
    """What the two rules rest on, asked of torch itself: the view's memory stays when the parameter is given other data."""
    torch = pytest.importorskip("torch")
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    layer, x = torch.nn.Linear(8, 4), torch.ones(2, 3, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    before = layer.weight.untyped_storage().data_ptr()
    layer.weight.data = torch.empty(0)
    assert before in [t.untyped_storage().data_ptr() for t in saved]
    saved.clear()
    scores = torch.ones(2, 3, requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.max(scores, torch.tensor(-1.0))
    assert any(t.shape == scores.shape for t in saved)


def test_without_zero_the_engine_has_no_buckets_and_widens_every_gradient_at_the_step() -> None:
    """Stage 0 in fp16: no DistributedDataParallel; the step holds fp16 gradients, their fp32 casts and the joined fp32 tensor."""
    sections: dict[str, dict[str, Any]] = {
        "precision": {"weights": "fp16", "compute": "fp16", "gradients": "fp16"},
        "parallel": {"strategy": "ddp", "shard": 1, "replicate": 4},
    }
    ledger = estimate(job(**sections))
    n = elements(ledger)
    assert named(ledger, "communication", "", "loss.backward") == 0
    assert named(ledger, "communication", "joined to be reduced", "backward.root") == 2 * n
    assert named(ledger, "gradients", "", "step.update") == (2 + 4 + 4) * n


def test_scores_of_opt_and_old_llama_are_floored_by_a_maximum_that_keeps_them() -> None:
    """torch.max(scores, least number) until transformers 4.50 for OPT: two bytes a token, key and head more."""
    opt = {"model_type": "opt", "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
           "max_position_embeddings": 512, "word_embed_proj_dim": 256, "dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
    kept = []
    for version in ("4.48.3", "4.50.3"):
        ledger = estimate(
            job(
                model={"config": opt, "source": "huggingface"},
                precision={"weights": "fp16", "compute": "fp16", "mixed": "none", "master": "none", "gradients": "fp16"},
                activations={"attention": "eager"},
                parallel={"strategy": "none", "shard": 1},
                framework={"name": "custom", "versions": {"transformers": version}},
            )
        )
        kept.append(named(ledger, "attention", "", "loss.forward"))
    assert kept[0] - kept[1] == 2 * 4 * 8 * 512 * 512


@pytest.mark.parametrize(("micro_batches", "buffers"), [(8, 2), (1, 1)])
def test_the_pipeline_engine_keeps_its_last_stages_logits(micro_batches: int, buffers: int) -> None:
    """Megatron-DeepSpeed: pipe_buffers['outputs'] is not emptied on the last stage; the current micro batch's are the loss's own until its backward."""
    config = {"model_type": "gpt2", "n_embd": 512, "n_layer": 6, "n_head": 8, "n_positions": 512, "vocab_size": 8064, "tie_word_embeddings": True}
    ledger = estimate(
        job(
            model={"config": config, "source": "megatron"},
            precision={"weights": "fp16", "compute": "fp16", "gradients": "fp16"},
            batch={"gradient_accumulation": micro_batches},
            activations={"checkpointing": "full", "attention": "te-unfused", "loss": "vocab-parallel"},
            parallel={"strategy": "zero1"},
            framework={"name": "megatron-lm", "versions": {}},
        )
    )
    one = 512 * 8064 * 4
    for moment, alive in (("loss.forward", buffers), ("loss.backward", buffers - 1), ("backward.last-block", buffers), ("step.update", buffers)):
        assert named(ledger, "logits", "buffers", moment) == alive * one, moment


def test_colossalais_step_widens_each_tensors_gradient_and_joins_none() -> None:
    def held(framework: str) -> dict[str, int]:
        made = job(parallel={"strategy": "zero2", "shard": 4, "bucket_elements": None}, framework={"name": framework})
        return {h.name: h.bytes for h in estimate(made).holdings if h.device == "gpu"}

    deepspeed, colossal = held("deepspeed"), held("colossalchat")
    assert colossal["fp32 gradients for the step"] == deepspeed["fp32 gradients for the step"]
    assert "gradients joined in one tensor" in deepspeed and "gradients joined in one tensor" not in colossal
    assert colossal["reduce bucket"] == 12 * 1024**2 * 2


def test_one_rank_gathers_nothing_unless_its_parameters_are_on_the_host() -> None:
    def gathered(shard: int, where: str) -> int:
        made = job(parallel={"strategy": "zero3", "shard": shard}, offload={"parameters": where})
        return sum(h.bytes for h in estimate(made).holdings if h.part == "communication" and h.name != "reduce bucket")

    assert gathered(1, "none") == 0
    assert gathered(1, "cpu") > 0 and gathered(2, "none") > 0


def test_ulysses_reduces_in_fp32_unless_told_otherwise() -> None:
    def bucket(**precision: str) -> int:
        made = job(parallel={"strategy": "zero3", "shard": 4, "context": 4, "context_kind": "ulysses"}, precision=precision)
        return next(h.bytes for h in estimate(made).holdings if h.name == "reduce bucket")

    assert bucket() == 2 * bucket(reduce="bf16") == 4 * 1_000_000


HEAD = 8000 * 512


def test_since_0_18_3_the_bucket_comes_with_the_first_gradient() -> None:
    """Before, beside the loss's fp32 copies: 8 bytes a logit more than the two of their gradient, which since then cover it."""

    def added(version: str) -> int:
        made = job(parallel={"strategy": "zero2", "bucket_elements": 10_000}, framework={"versions": {"deepspeed": version}})
        return named(estimate(made), "communication", "reduce bucket", "loss.backward")

    assert added("0.18.2") == 20_000
    assert added("0.18.3") == 0
    large = job(parallel={"strategy": "zero2", "bucket_elements": 100_000_000})
    assert 0 < named(estimate(large), "communication", "reduce bucket", "loss.backward") < 2 * 100_000_000
    assert named(estimate(large), "communication", "reduce bucket", "backward.last-block") == 2 * 100_000_000


def test_stage_1_steps_with_a_share_of_gradients_and_keeps_its_bucket_between_micro_batches() -> None:
    once, twice = (estimate(job(parallel={"strategy": "zero1"}, batch={"gradient_accumulation": number})) for number in (1, 2))
    for ledger in (once, twice):
        assert named(ledger, "gradients", "whole", "step.update") == 0
        assert named(ledger, "gradients", "partition", "step.update") == pytest.approx(2 * elements(ledger) / 4, rel=0.001)
        assert named(ledger, "gradients", "whole", "backward.root") == 2 * elements(ledger)
    assert named(once, "communication", "reduce bucket", "forward.blocks") == 0
    assert named(twice, "communication", "reduce bucket", "forward.blocks") == 2 * 1_000_000


def test_stage_2_joins_what_of_a_bucket_goes_to_different_ranks() -> None:
    def joined(shard: int, bucket: int, moment: str) -> int:
        made = job(parallel={"strategy": "zero2", "shard": shard, "bucket_elements": bucket})
        return named(estimate(made), "communication", "joined", moment)

    assert joined(4, 1_000_000, "backward.first-block") == 2 * 1_000_000
    whole = joined(4, 500_000_000, "backward.root")
    assert whole == 2 * elements(estimate(job()))  # all gradients fit
    assert joined(4, 500_000_000, "backward.first-block") == 0
    assert joined(1, 1_000_000, "backward.first-block") == 0  # one rank's slices go as they lie


def test_the_norm_counts_where_one_tensor_is_most_of_a_partition() -> None:
    """8 bytes an element of the largest tensor, at most of the share, beside the 6 of the copies that come later."""
    many = estimate(job(parallel={"strategy": "zero2", "shard": 64}))
    share = named(many, "gradients", "fp32", "step.update") // 4
    assert share < HEAD
    assert named(many, "gradients", "norm", "step.update") == 2 * share
    assert named(estimate(job(parallel={"strategy": "zero2", "shard": 2})), "gradients", "norm", "step.update") == 0


def test_stage_0_in_bf16_has_the_engines_own_reduction_and_wide_gradients() -> None:
    plain = job(parallel={"strategy": "ddp", "replicate": 4, "shard": 1}, hardware={"gpus_per_node": 4}, optimizer={"implementation": "fused"})
    own = job(parallel={"strategy": "ddp", "replicate": 4, "shard": 1}, hardware={"gpus_per_node": 4})
    trained = elements(estimate(plain))
    assert named(estimate(plain), "communication", "DDP", "backward.root") == 0
    assert named(estimate(plain), "communication", "joined", "backward.root") == 2 * trained
    assert named(estimate(plain), "gradients", "fp32", "step.update") == 4 * trained
    assert named(estimate(own), "gradients", "fp32", "step.update") == 8 * trained  # DeepSpeed's own optimizer joins them once more


def test_the_engine_takes_back_what_the_k_bit_preparation_widened() -> None:
    """Embedding and head in fp32 before it, in 16 bits after it: 2 bytes an element of each less."""

    def resting(mixed: str) -> int:
        config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 8000}
        lora = {"kind": "lora", "rank": 8, "base": "nf4", "kbit_preparation": True}
        made = job(method=lora, model={"config": {**config, "tie_word_embeddings": False}, "source": "huggingface"}, precision={"mixed": mixed})
        made["parallel"] = {"strategy": "zero2", "shard": 4}
        return sum(h.bytes for h in estimate(made).holdings if h.part == "weights" and "forward.blocks" in h.moments and h.device == "gpu")

    wide, narrow = resting("autocast"), resting("deepspeed")
    assert wide - narrow >= 2 * 2 * HEAD
