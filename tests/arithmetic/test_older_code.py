"""What older code keeps: softmax's input (torch before 1.11), 16-bit softmax of eager code, an image model that is no tower."""

from __future__ import annotations

from typing import Any

import pytest

from advisor import estimate

BERT: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 512, "type_vocab_size": 2, "num_labels": 2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
VIT: dict[str, Any] = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 4, "image_size": 224, "patch_size": 16, "num_labels": 10,
}  # fmt: skip
LAYERS, HEADS, MICRO, SEQ = 4, 8, 4, 512
PAIRS = LAYERS * HEADS * MICRO * SEQ * SEQ  # elements of all score matrices


def job(config: dict[str, Any], *, precision: str = "fp32", source: str = "huggingface", micro: int = MICRO, seq: int = SEQ, **versions: str) -> dict[str, Any]:
    return {
        "version": 1,
        "model": {"name": "small", "config": config, "source": source},
        "method": {"kind": "full"},
        "objective": "sft",
        "precision": {"weights": precision, "compute": precision, "mixed": "none", "gradients": precision},
        "optimizer": {"name": "sgd"},
        "batch": {"micro_batch": micro, "seq_len": seq, "gradient_accumulation": 1, "packed": True},
        "activations": {"checkpointing": "none", "attention": "eager", "loss": "full"},
        "parallel": {"strategy": "none", "shard": 1},
        "framework": {"name": "custom", "versions": versions},
    }


def at_forward(written: dict[str, Any]) -> int:
    """Bytes of scores that are kept when the last block has run forward."""
    ledger = estimate(written)
    return sum(h.bytes for h in ledger.holdings if h.part == "attention" and "loss.forward" in h.moments)


def test_torch_before_1_11_keeps_the_scores_beside_the_weights() -> None:
    """pytorch issue 64000: ``_softmax_backward_data`` named its input, so autograd held both; pull request 66018 ended it for 1.11."""
    before, after = (at_forward(job(BERT, torch=version, transformers="4.15.0")) for version in ("1.10.1", "1.11.0"))
    assert before - after == 4 * PAIRS
    assert after == pytest.approx(4 * PAIRS, rel=0.02)  # without dropout the weights that softmax made are what the product reads; the rest is the mask


@pytest.mark.parametrize(
    ("kind", "version", "bytes_a_pair"),
    [("gpt2", "4.46.3", 2), ("gpt_neox", "4.46.3", 2), ("gpt_neox", "4.53.3", 6), ("opt", "4.36.2", 4), ("opt", "4.53.3", 6), ("llama", "4.46.3", 6)],
)
def test_eager_softmax_runs_in_the_dtype_that_the_family_asks_for(kind: str, version: str, bytes_a_pair: int) -> None:
    """Without ``dtype=torch.float32`` bf16 scores stay bf16: one matrix is kept; widened, the fp32 weights and their bf16 cast.

    OPT until 4.50 keeps the scores too that its torch.max reads.
    """
    shape = {
        "model_type": kind, "hidden_size": 256, "intermediate_size": 1024, "ffn_dim": 1024, "n_inner": 1024, "num_hidden_layers": LAYERS, "n_layer": LAYERS,
        "n_embd": 256, "n_head": HEADS, "n_positions": 512, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": 1000,
        "max_position_embeddings": 512, "word_embed_proj_dim": 256, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "dropout": 0.0,
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "hidden_act": "gelu",
    }  # fmt: skip
    if kind != "gpt2":
        shape = {name: value for name, value in shape.items() if not name.startswith("n_")}
    kept = at_forward(job(shape, precision="bf16", torch="2.4.0", transformers=version))
    assert kept == pytest.approx(bytes_a_pair * PAIRS, rel=0.05)


def test_fp16_scores_of_opt_were_widened_all_along() -> None:
    shape = {"model_type": "opt", "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": 1000,
             "max_position_embeddings": 512, "word_embed_proj_dim": 256, "dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
    kept = at_forward(job(shape, precision="fp16", torch="2.4.0", transformers="4.28.1"))
    assert kept == pytest.approx((2 + 4 + 2) * PAIRS, rel=0.05)  # what torch.max reads, fp32 weights, their fp16 cast


def test_an_image_model_keeps_activations_as_its_batch_grows() -> None:
    """A ViT's patches are its sequence: twice the images keep twice the activations, and its blocks are counted as any encoder's."""
    sizes = []
    for micro in (16, 32):
        ledger = estimate(job(VIT, micro=micro, seq=197, torch="2.1.0"))
        sizes.append(sum(h.bytes for h in ledger.holdings if h.part in ("activations", "attention") and "loss.forward" in h.moments))
    assert sizes[0] > 0
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.02)
