"""Which attention kernel really runs, and whether it holds a score matrix."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.architecture import Block
from advisor.arithmetic import moments as at
from advisor.arithmetic.blocks.setting import Kernel
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

BOTH_WAYS = frozenset({"gemma3", "paligemma"})
REPEATED_BY_FLASH = {  # families whose flash attention repeats keys and values to all heads, and the transformers version that ends it
    "mistral": (4, 48), "mixtral": (4, 48), "phi3": (4, 48), "qwen2": (4, 48), "starcoder2": (4, 48), "zamba": (4, 48),
    "qwen2_vl": (4, 53), "qwen2_5_vl": (4, 53), "idefics2": (4, 53), "qwen2_moe": (5,), "jamba": (5,), "phimoe": (5,),
}  # fmt: skip
# Families whose transformers code knows no scaled_dot_product_attention, and the version that ends it (None: none up to 5.24): "sdpa", which is only
# a default there, means eager code. Read in the wheels of 4.36 to 5.24 (``_supports_sdpa`` in modeling_*.py); a bound between two read versions is the later.
EAGER_UNTIL: dict[str, tuple[int, ...] | None] = {
    "mistral": (4, 37), "mixtral": (4, 37), "phi": (4, 39), "stablelm": (4, 39), "bert": (4, 41), "gpt2": (4, 42), "gpt_neox": (4, 42), "roberta": (4, 45),
    "camembert": (4, 45), "phi3": (4, 45), "opt": (4, 46), "distilbert": (4, 46), "electra": (5,), "t5": (5, 16), "mt5": (5, 16), "umt5": (5, 16),
    "gptj": (5, 20), "codegen": (5, 24), "bloom": None, "mpt": None, "gpt_neo": None, "gpt_oss": None, "gpt_neox_japanese": None,
    "deberta-v2": None, "deberta": None, "longt5": None, "switch_transformers": None,
}  # fmt: skip
# Families whose eager code calls softmax without a dtype, so that 16-bit scores stay 16-bit, and the version that ends it. Read in the wheels of 4.28,
# 4.36, 4.41, 4.46, 4.48, 4.50, 4.53, 4.57, 5.0 and 5.24 (softmax in modeling_*.py); a bound between two read versions is the later. Code of one's own
# that is written as one of these families has no dtype there either (nanoGPT, nn.MultiheadAttention, LLMs-from-scratch).
NARROW_UNTIL: dict[str, tuple[int, ...] | None] = {
    "gpt2": None, "bert": None, "roberta": None, "xlm-roberta": None, "camembert": None, "electra": None, "distilbert": None, "deberta": None,
    "deberta-v2": None, "bart": None, "mbart": None, "m2m_100": None, "pegasus": None, "whisper": None, "falcon": None, "gpt_oss": None,
    "marian": None, "plbart": None, "mvp": None, "blenderbot": None, "blenderbot-small": None,
    "gpt_neox": (4, 50), "opt": (4, 50), "opt-350m": (4, 50), "vit": (4, 50),
}  # fmt: skip
# torch.max(scores, least number) in modeling_{llama,opt,xglm}.py, and the version that ends it (read in 4.28, 4.30, 4.31, 4.48 and 4.50)
FLOORED_UNTIL: dict[str, tuple[int, ...]] = {"llama": (4, 31), "opt": (4, 50), "opt-350m": (4, 50)}
RECENT = (5, 10)  # a family that learnt it after this is taken for eager where no version is known
BROADCASTS = frozenset({"falcon"})  # one key head is left to broadcast: heads differ, which no fused kernel takes (modeling_falcon.FalconAttention)
TRUTH_SINCE = (4, 53)  # masking_utils.py came with it; before, each model made its own mask in the compute dtype
NATIVE_GROUPS_SINCE = (4, 54)  # transformers' sdpa_attention_forward passes enable_gqa instead of repeating
# Families with a forward pass of Unsloth's own (unsloth models/{llama,mistral,qwen2,qwen3,qwen3_moe,gemma,granite,cohere,falcon_h1}.py): flash-attn's
# kernel where it is installed (cards from 8.0 on), else xformers', which Unsloth requires, on keys and values repeated to all heads; no mask in training.
UNSLOTH = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma", "granite", "cohere", "falcon_h1"})
POSITIONED = frozenset({"t5", "mt5", "umt5"})  # scaled_dot_product_attention is given positions as numbers to add (integrations/sdpa_attention.py)
FLASH_HEAD = 256  # largest head size of flash attention (flash_api.cpp; sdp_utils.cpp check_head_dim_size_flash)


def holdings(ctx: Context) -> Iterator[Holding]:
    """The masks that eager code, sliding windows and padded batches make, one a kind of layer: ``[micro_batch, 1, seq_len, seq_len]``, all step long.

    Eager code adds one in the compute dtype; for ``scaled_dot_product_attention`` it is of truth values since :data:`TRUTH_SINCE`, of which
    each call makes a 16-bit one for the kernel (:func:`advisor.arithmetic.blocks.attention.kernel`).
    """
    if ctx.source != "huggingface" or not ctx.arch.causal or ctx.arch.encoder_decoder:
        return  # an encoder's is a row a sequence, [micro_batch, 1, 1, seq_len], until a batch is padded
    kinds = {(block.window is not None and ctx.seq_len >= block.window, *kernel_of(ctx, block)) for block, _ in ctx.blocks if block.heads}
    masks = {(sliding, 1 if kernel != "eager" and truth_masks(ctx) else ctx.compute) for sliding, kernel, masked in kinds if masked and kernel != "flash"}
    if not masks:
        return
    each = sum(size for _, size in masks)
    values = {"micro_batch": ctx.micro_batch, "seq_len": ctx.seq_len, "bytes": each}
    source = "transformers masking_utils: the causal, sliding and padding masks, made once a forward pass and saved by every checkpointed block"
    size = ctx.tokens * ctx.seq_len * each
    yield Holding("attention", "attention mask", size, at.COMPUTE & ctx.moments, "micro_batch x seq_len x seq_len x bytes", values, source)


def truth_masks(ctx: Context) -> bool:
    """Whether the mask for ``scaled_dot_product_attention`` holds truth values (transformers masking_utils.py sdpa_mask), not numbers to add."""
    return ctx.source == "huggingface" and ctx.at_least("transformers", *TRUTH_SINCE)


def added_mask(ctx: Context, block: Block) -> int:
    """Bytes of an element of the mask that each call makes of truth values, where a layer's window brings one.

    Known error: a padded batch's mask is turned into numbers by each call too, which is not counted: the four public runs that it would move
    (PEFT's comparison, two to four percent below the estimate without it) speak against it.
    """
    return ctx.compute if (slides(ctx, block) or overlaid(ctx)) and truth_masks(ctx) else 0


def kernel_of(ctx: Context, block: Block) -> tuple[Kernel, bool]:
    """The kernel, and whether a padding mask reaches it (then keys and values are expanded to all heads)."""
    asked = ctx.attention
    if asked == "eager" or (asked == "sdpa" and eager_only(ctx)):
        return "eager", True
    if asked in ("te-fused", "te-unfused", "flex"):
        return asked, False  # type: ignore[return-value]
    if asked in ("flash-2", "flash-3"):
        return "flash", False
    if asked == "xformers" or (asked == "sdpa" and of_xformers(ctx)):
        return "efficient", False
    return sdpa(ctx, block)


def of_xformers(ctx: Context) -> bool:
    """Whether Unsloth's own code runs on a card that flash attention does not take: xformers' memory-efficient kernel holds no score matrix (fp16, fp32)."""
    own = ctx.framework == "unsloth" and ctx.arch.model_type in UNSLOTH and not capped(ctx)
    return own and ctx.sm is not None and ctx.sm < 80 and ctx.job.precision.compute != "bf16"


def eager_only(ctx: Context) -> bool:
    """Whether Hugging Face's code of this family and version has no scaled_dot_product_attention to choose."""
    kind = ctx.arch.model_type
    if ctx.source != "huggingface" or kind not in EAGER_UNTIL:
        return False
    end = EAGER_UNTIL[kind]
    return end is None or not ctx.at_least("transformers", *end, unknown=end < RECENT)


def narrow_softmax(ctx: Context) -> bool:
    """Whether the softmax of eager code runs in the scores' own dtype: older families', gpt-oss's (scores and sinks joined), T5's since it knows sdpa."""
    if ctx.source not in ("huggingface", "remote-code"):
        return False
    kind = ctx.arch.model_type
    if kind in ("t5", "mt5", "umt5"):
        return ctx.source == "huggingface" and not eager_only(ctx)
    if kind not in NARROW_UNTIL or (kind.startswith("opt") and ctx.job.precision.compute == "fp16"):  # OPT widened fp16 scores only
        return False
    end = NARROW_UNTIL[kind]
    return end is None or ctx.source == "remote-code" or not ctx.at_least("transformers", *end)


def floored(ctx: Context) -> bool:
    """Whether masked scores are kept from falling below the dtype's least number by ``torch.max`` of two tensors, which saves what goes in."""
    end = FLOORED_UNTIL.get(ctx.arch.model_type)
    return end is not None and ctx.source == "huggingface" and not ctx.at_least("transformers", *end)


def softmax_keeps_scores(ctx: Context) -> bool:
    """Whether autograd keeps what goes into a softmax as well as what comes out (torch before 1.11: pytorch issue 64000, pull request 66018)."""
    return not ctx.at_least("torch", 1, 11)


def capped(ctx: Context) -> bool:
    """Whether attention scores are capped by a tanh: as the config says; Gemma 2 unless it says otherwise (Gemma2Config: 50)."""
    return ctx.arch.softcap_attention is not None or ctx.arch.model_type == "gemma2"


def expands(ctx: Context) -> bool:
    """Whether Hugging Face's code repeats keys and values to all heads before the kernel, by family and version; and torchtitan's.

    torchtitan models/llama3/model/model.py: repeat_kv in 0.1.0 to 0.2.1, enable_gqa since 0.2.2.
    """
    if ctx.source == "torchtitan":
        return ctx.attention == "sdpa" and not ctx.at_least("torchtitan", 0, 2, 2, unknown=False)
    if ctx.source != "huggingface":
        return False
    if ctx.attention in ("flash-2", "flash-3"):
        end = REPEATED_BY_FLASH.get(ctx.arch.model_type)
        return end is not None and not ctx.at_least("transformers", *end)
    return ctx.attention == "sdpa" and not ctx.at_least("transformers", *NATIVE_GROUPS_SINCE)


def sdpa(ctx: Context, block: Block) -> tuple[Kernel, bool]:
    """``scaled_dot_product_attention``'s own choice: flash, memory-efficient, math (ATen sdp_utils.cpp, in this order).

    Flash takes 16-bit inputs without a mask, equal head sizes up to 256, from compute capability 8.0; the memory-efficient kernel takes
    fp32 and masks, and bf16 from 8.0 only, but no grouped heads (check_batch_size_and_num_heads_dense<false>). Hugging Face drops an
    all-ones mask, so only padded batches bring one, and layers with a sliding window once a sequence is as long as it (masking_utils.py
    _ignore_causal_mask_sdpa); it repeats keys and values only for a mask: without one, grouped heads that flash does not take (fp32, cards
    before 8.0) end in the math kernel.
    """
    masked = (
        slides(ctx, block)
        or overlaid(ctx)
        or (
            ctx.source in ("huggingface", "remote-code")
            and ctx.job.batch.packed is False
            and ctx.micro_batch > 1
            and ctx.job.activations.sequence_packing != "padding-free"
        )
    )
    sixteen = ctx.compute == 2 and (ctx.weight == 2 or ctx.autocast or ctx.job.precision.mixed in ("fsdp", "deepspeed", "megatron"))
    old = ctx.sm is not None and ctx.sm < 80
    if capped(ctx) and ctx.source in ("huggingface", "litgpt"):  # no fused kernel caps scores
        return "eager", True
    if old and ctx.job.precision.compute == "bf16":
        return "math", masked
    if ctx.source == "huggingface" and ctx.arch.model_type in BROADCASTS and block.kv_heads == 1 < block.heads:
        return "math", masked
    if positioned(ctx):
        return "efficient", masked
    equal = block.head_dim == block.v_head_dim
    if sixteen and not masked and not old and equal and block.head_dim <= FLASH_HEAD:
        return "flash", False
    return ("math", False) if native_groups(ctx, block) and not masked else ("efficient", masked)


def positioned(ctx: Context) -> bool:
    """Whether positions are added to the scores, which no kernel but the memory-efficient one takes (T5 since it knows sdpa)."""
    return ctx.source == "huggingface" and ctx.arch.model_type in POSITIONED and ctx.attention == "sdpa" and not eager_only(ctx)


def overlaid(ctx: Context) -> bool:
    """Whether images see themselves both ways, which the causal mask is joined with (modeling_gemma3, modeling_paligemma: block_sequence_ids)."""
    seen = ctx.job.model.vision
    return ctx.source == "huggingface" and ctx.arch.model_type in BOTH_WAYS and seen is not None and seen.tower != "skipped"


def slides(ctx: Context, block: Block) -> bool:
    """Whether a layer's sliding window is shorter than the sequence, so that Hugging Face's code makes a mask for it."""
    return ctx.source == "huggingface" and block.window is not None and ctx.seq_len >= block.window


def native_groups(ctx: Context, block: Block) -> bool:
    """Whether ``enable_gqa`` hands grouped heads to the kernel as they are (transformers integrations/sdpa_attention.py use_gqa_in_sdpa)."""
    if ctx.source != "huggingface" or block.kv_heads >= block.heads or not ctx.at_least("torch", 2, 5):
        return False
    if not ctx.at_least("transformers", *NATIVE_GROUPS_SINCE):
        return False
    return block.head_dim == block.v_head_dim <= FLASH_HEAD or not ctx.at_least("transformers", 5)
