"""The tapes against the real modelling code: what one block saves, to the byte but for a few constants."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.architecture import read
from advisor.arithmetic import settings, traits
from advisor.arithmetic.blocks.block import count
from advisor.arithmetic.blocks.setting import Setting

torch = pytest.importorskip("torch", reason="the modelling code needs torch")
transformers = pytest.importorskip("transformers", reason="the modelling code is transformers'")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]  # peft 0.21 asks transformers 5.24 by an old name

BATCH, SEQUENCE = 2, 64
TOKENS = BATCH * SEQUENCE
COMMON = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2}
GPT = {"vocab_size": 512, "n_embd": 256, "n_head": 8, "n_layer": 2, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}


def config(family: str) -> Any:
    """A tiny config of a family."""
    make = {
        "llama": lambda: transformers.LlamaConfig(**COMMON),
        "qwen2": lambda: transformers.Qwen2Config(**COMMON),
        "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=32),
        "gemma": lambda: transformers.GemmaConfig(**COMMON, head_dim=32),
        "gemma3_text": lambda: transformers.Gemma3TextConfig(**COMMON, head_dim=32),
        "phi": lambda: transformers.PhiConfig(**{**COMMON, "num_key_value_heads": 8}, resid_pdrop=0.0, embd_pdrop=0.0),
        "phi3": lambda: transformers.Phi3Config(**COMMON, pad_token_id=0, bos_token_id=1, eos_token_id=2),
        "gpt2": lambda: transformers.GPT2Config(**GPT, bos_token_id=0, eos_token_id=0),
        "gpt_bigcode": lambda: transformers.GPTBigCodeConfig(**GPT, bos_token_id=0, eos_token_id=0),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(vocab_size=512, hidden_size=256, intermediate_size=1024, num_attention_heads=8),
        "olmo2": lambda: transformers.Olmo2Config(**COMMON, pad_token_id=0, eos_token_id=1),
        "cohere": lambda: transformers.CohereConfig(**COMMON, bos_token_id=1, eos_token_id=2),
        "glm4": lambda: transformers.Glm4Config(**COMMON, head_dim=32, pad_token_id=0, eos_token_id=1),
        "stablelm": lambda: transformers.StableLmConfig(**COMMON),
        "starcoder2": lambda: transformers.Starcoder2Config(**COMMON, residual_dropout=0.0, embedding_dropout=0.0, bos_token_id=0, eos_token_id=0),
        "mixtral": lambda: transformers.MixtralConfig(**COMMON),
        "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**COMMON, moe_intermediate_size=96, num_experts=8, num_experts_per_tok=2, head_dim=32),
    }
    return make[family]()


def setting(arch: Any, **how: Any) -> Setting:
    """The setting of a family in bf16 with flash attention."""
    family = traits.of(arch.model_type)
    base = {
        "norm_kind": family.norm or ("layer" if arch.norm == "layernorm" else "rms"), "activation": arch.activation,
        "rotary": family.rotary if arch.rotary else "none", "post": family.post, "wide_qk": family.wide_qk,
    }  # fmt: skip
    return Setting(**{**base, **how})


def tape(family: str, **how: Any) -> Any:
    """The counted block of a family."""
    arch = read(config(family).to_dict())
    return count(arch.blocks[0], arch.hidden, setting(arch, **how))


def total(counted: Any, tokens: int = TOKENS, sequence: int = SEQUENCE) -> float:
    """Bytes that the block saves."""
    a, b, c, d = counted.total
    return a * tokens + b * tokens * sequence + c + d


FAMILIES = (
    "llama", "qwen2", "qwen3", "gemma", "gemma3_text", "phi", "phi3", "gpt2", "gpt_bigcode", "gpt_neox", "olmo2", "cohere", "glm4", "stablelm",
    "starcoder2", "mixtral", "qwen3_moe",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_saves_what_the_tape_says(family: str) -> None:
    from tests.arithmetic.blocks.measuring import block_saves

    measured = block_saves(config(family), BATCH, SEQUENCE)
    assert total(tape(family)) == pytest.approx(measured, rel=0.003)


def test_eager_attention_keeps_its_score_matrix_twice() -> None:
    from tests.arithmetic.blocks.measuring import block_saves

    measured = block_saves(config("llama"), BATCH, SEQUENCE, attention="eager")
    assert total(tape("llama", kernel="eager")) == pytest.approx(measured, rel=0.001)


def _adapt(dtype: Any, dropout: float = 0.0, dora: bool = False) -> Any:
    import peft

    def change(model: Any) -> Any:
        lora = peft.LoraConfig(r=8, target_modules="all-linear", lora_dropout=dropout, use_dora=dora, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora, autocast_adapter_dtype=dtype is None)
        for p in model.parameters():
            if p.requires_grad and dtype is not None:
                p.data = p.data.to(dtype)
        model.enable_input_require_grads()
        return model

    return change


def _freeze(model: Any) -> Any:
    for p in model.parameters():
        p.requires_grad_(False)
    model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out.requires_grad_(True))
    return model


def test_a_frozen_block_saves_only_what_gradients_pass_through() -> None:
    from tests.arithmetic.blocks.measuring import block_saves

    measured = block_saves(config("llama"), BATCH, SEQUENCE, change=_freeze)
    assert total(tape("llama", trained=False)) == pytest.approx(measured, rel=0.001)


@pytest.mark.parametrize(("adapter", "dropout"), [(2, 0.0), (4, 0.0), (2, 0.1), (4, 0.1)])
def test_adapters_save_their_inputs_casts_and_masks(adapter: int, dropout: float) -> None:
    pytest.importorskip("peft", reason="adapters are peft's")
    from tests.arithmetic.blocks.measuring import block_saves

    arch = read(config("llama").to_dict())
    how = {"trained": False, "adapted": settings.targets(arch.blocks[0], "all-linear"), "rank": 8, "adapter": adapter, "dropout": dropout}
    measured = block_saves(config("llama"), BATCH, SEQUENCE, change=_adapt(torch.bfloat16 if adapter == 2 else None, dropout))
    assert total(tape("llama", **how)) == pytest.approx(measured, rel=0.001)


PEAKS = ("llama", "qwen3", "gemma", "phi3", "gpt_neox", "olmo2", "cohere", "stablelm", "mixtral", "qwen3_moe")


@pytest.mark.parametrize("family", PEAKS)
def test_the_largest_moment_of_a_blocks_backward(family: str) -> None:
    from tests.arithmetic.blocks.measuring import block_backward_peak

    tokens, sequence = 2 * 256, 256
    counted = tape(family)

    def size(step: Any) -> float:
        a, b = step.saved, step.live
        return (a[0] + b[0]) * tokens + (a[1] + b[1]) * tokens * sequence + a[2] + b[2] + a[3] + b[3] + 2 * step.born

    expected = max(size(s) for s in counted.backward) - counted.output[0] * tokens  # the gradient that comes in is the caller's
    measured = block_backward_peak(config(family), 2, sequence)
    assert expected == pytest.approx(measured, rel=0.01)


def test_doras_identity_is_gone_after_the_forward_pass() -> None:
    pytest.importorskip("peft", reason="adapters are peft's")
    from tests.arithmetic.blocks.measuring import block_backward_peak

    arch = read(config("llama").to_dict())
    how = {"trained": False, "adapted": settings.targets(arch.blocks[0], "all-linear"), "rank": 8, "adapter": 2, "dora": True}
    counted = tape("llama", **how)
    tokens = 2 * 256
    expected = max((s.saved[0] + s.live[0]) * tokens + s.saved[2] + s.live[2] + 2 * s.born for s in counted.backward) - counted.output[0] * tokens
    measured = block_backward_peak(config("llama"), 2, 256, change=_adapt(torch.bfloat16, dora=True))
    assert expected == pytest.approx(measured, rel=0.01)
    assert any(size[2] > 0 for size in counted.bare)  # but it is there for a moment
