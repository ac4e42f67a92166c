"""From a run's context to the setting of its blocks: dtypes, kernels and what trains."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Literal

from msgspec.structs import replace

from advisor.architecture import Block
from advisor.arithmetic import traits
from advisor.arithmetic.attention_scores import added_mask, capped, expands, floored, kernel_of, narrow_softmax, softmax_keeps_scores
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.checkpointing import reentrant
from advisor.arithmetic.context import Context
from advisor.arithmetic.dtypes import bytes_of
from advisor.arithmetic.fates import experts_adapted, experts_are_linear, version_open
from advisor.arithmetic.parameters import ADAPTED, ATTENTION_QV

LITGPT_DROPOUT = 0.05
BF16_TAIL = 0.15  # torchtitan models/llama3/config_registry.py llama3_8b_first_85_pct_layers_nvfp4, and Qwen 3's
VERL_TILES = 4  # verl models/transformers/tiled_mlp.py num_shards
LAID_OUT_SINCE = (4, 54)
COMPILED = frozenset({"rmsnorm", "swiglu", "rope"})  # what the min-cut partitioner recomputes: norms and activations from their inputs
ALIASES = {  # one module under the names that other modelling code gives it
    "q_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv"), "k_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv"),
    "v_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv"), "o_proj": ("dense", "c_proj", "out_proj"),
    "up_proj": ("fc1", "c_fc", "dense_h_to_4h", "gate_up_proj"), "gate_proj": ("gate_up_proj",), "down_proj": ("fc2", "dense_4h_to_h"),
    "output_proj": ("o_proj",), "w1": ("gate_proj",), "w2": ("down_proj",), "w3": ("up_proj",),
}  # fmt: skip
LITGPT_PARTS = frozenset({"q_proj", "k_proj", "v_proj"})
FUSED_QKV = frozenset({"query_key_value", "qkv_proj", "c_attn", "Wqkv", "W_pack"})
QUANTISED = frozenset({"nf4", "fp4", "int8", "gptq-int4", "awq-int4", "mxfp4", "fp8"})
KBIT = frozenset({"nf4", "fp4", "int8"})


def of(ctx: Context, block: Block) -> Setting:
    """The setting of a text block of this run."""
    method, family = ctx.job.method, traits.of(ctx.arch.model_type)
    adapted = ctx.method in ADAPTED
    kernel, masked = kernel_of(ctx, block)
    if ctx.is_megatron or ctx.source == "megatron":
        return _megatron(ctx, block, adapted)
    if ctx.source == "litgpt":
        return _litgpt(ctx, block, adapted)
    kbit = adapted and ctx.base in KBIT and method.kbit_preparation is True
    norm = 4 if kbit else ctx.weight
    tile, tiles = tiles_of(ctx)
    return Setting(
        stream=stream(ctx), weight=ctx.weight if not mixed_copy(ctx) else ctx.compute, norm=norm if not mixed_copy(ctx) else ctx.compute, compute=ctx.compute,
        autocast=ctx.autocast and ctx.compute < 4,
        trained=not adapted,
        base=ctx.base if adapted and ctx.base in QUANTISED else "none",
        keeps_input=keeps_input(ctx),
        adapted=targets(block, method.targets) if adapted else frozenset(), rank=method.rank or 8, adapter=ctx.adapter if not mixed_copy(ctx) else ctx.compute,
        dropout=method.dropout or 0.0, dora=ctx.method == "dora",
        kernel=kernel, masked=masked, bias=added_mask(ctx, block), expanded=expands(ctx),
        attention_dropout=ctx.arch.attention_dropout, hidden_dropout=ctx.arch.hidden_dropout,
        inner_dropout=ctx.arch.hidden_dropout if family.inner_dropout else 0.0,
        fused=ctx.kernels | COMPILED if ctx.compiled else ctx.kernels, source=ctx.source, activation=activation(ctx, family),
        norm_kind=family.norm or ("layer" if ctx.arch.norm == "layernorm" else "rms"),
        rotary=family.rotary if ctx.arch.rotary else "none", post=family.post, around=family.around, wide_qk=family.wide_qk,
        bare_qk=family.bare_qk, value_norm=family.value_norm, parts_copied=family.parts_copied,
        heads_first=family.heads_first and ctx.source == "huggingface", laid_out=laid_out(ctx),
        wide_router=family.wide_router, wide_weights=family.wide_weights and ctx.source == "huggingface", all_experts=family.all_experts,
        wide_scores=family.wide_scores, returns_weights=returns_weights(ctx),
        tensor=ctx.tensor, sequence=ctx.sequence_parallel, expert_ranks=ctx.expert, softcap=capped(ctx),
        narrow_softmax=narrow_softmax(ctx), floored=floored(ctx), softmax_keeps=softmax_keeps_scores(ctx), math_wide=ctx.at_least("torch", 2, 5),
        nvfp4=ctx.source == "torchtitan" and ctx.job.precision.compute == "nvfp4", tile=tile, tiles=tiles, tiles_joined=ctx.framework != "unsloth",
        compiled=ctx.compiled, experts=experts_of(ctx), experts_quantised=ctx.base == "mxfp4" or experts_are_linear(ctx.arch, ctx.job),
        experts_adapted=adapted and ctx.base == "none" and experts_adapted(ctx.arch, ctx.job),
    )  # fmt: skip


def parts(ctx: Context, block: Block, layers: int) -> list[tuple[Setting, int]]:
    """The settings that a kind of block runs in, and in how many layers each: one, but for torchtitan's NVFP4, whose last layers stay in bf16.

    components/quantization/nvfp4.py nvfp4_bf16_tail_fqns: ``ceil(15 % of the layers)`` in both recipes it has (Llama 3 8B, Qwen 3 8B).
    """
    own = of(ctx, block)
    if not own.nvfp4 or block is not ctx.blocks[-1][0]:
        return [(own, layers)]
    tail = min(layers, ceil(BF16_TAIL * ctx.layers))
    return [(s, n) for s, n in ((own, layers - tail), (replace(own, nvfp4=False), tail)) if n]


def tiles_of(ctx: Context) -> tuple[int, int]:
    """Tokens of a tile of the feed-forward part and how many tiles there are; ``(0, 1)`` where it runs on the whole sequence.

    A tile is about as long as the model is wide: ``ceil(seq_len / hidden)`` tiles (ArcticTraining's choice, which axolotl, Liger and Unsloth took over).
    """
    if not ctx.job.offload.tiled_mlp:
        return 0, 1
    tiles = VERL_TILES if ctx.framework == "verl" else -(-ctx.seq_len // ctx.arch.hidden)
    return (-(-ctx.tokens // tiles), tiles) if tiles > 1 else (0, 1)


def returns_weights(ctx: Context) -> bool:
    """Whether a reentrant checkpoint holds the attention weights that the recomputed block returned (CheckpointFunction.backward: all its outputs)."""
    return ctx.source == "huggingface" and ctx.checkpointing == "full" and reentrant(ctx) and traits.of(ctx.arch.model_type).returns_weights


def laid_out(ctx: Context) -> bool:
    """Rows without padding, told apart by their positions: transformers makes query, key and value contiguous since 4.54 and viewed them in 4.53.

    modeling_flash_attention_utils.py ``_prepare_from_posids``, ``prepare_fa2_from_position_ids``.
    """
    rows = ctx.job.activations.sequence_packing == "padding-free" and ctx.attention in ("flash-2", "flash-3")
    return rows and ctx.source == "huggingface" and ctx.at_least("transformers", *LAID_OUT_SINCE)


def activation(ctx: Context, family: traits.Traits) -> str:
    """The activation as it runs: Apertus' by its CUDA wheel where that is installed (axolotl examples/apertus/README.md recommends it), else in Python."""
    wheel = ctx.framework == "axolotl" or ctx.version("xielu") is not None
    return ctx.arch.activation if ctx.arch.model_type == "apertus" and wheel else family.activation or ctx.arch.activation


def _litgpt(ctx: Context, block: Block, adapted: bool) -> Setting:
    """litgpt's own modules in one dtype (bf16-true), adapters included; its LoRA drops out 5 % unless told otherwise (finetune/lora.py)."""
    method = ctx.job.method
    kernel, _ = kernel_of(ctx, block)
    return Setting(
        stream=ctx.weight, weight=ctx.weight, norm=ctx.weight, compute=ctx.compute, trained=not adapted,
        base=ctx.base if adapted and ctx.base in QUANTISED else "none", keeps_input=keeps_input(ctx),
        adapted=parted(targets(block, method.targets), method.targets) if adapted else frozenset(), rank=method.rank or 8,
        adapter=bytes_of(method.adapter_dtype, ctx.weight), norm_kind="layer" if ctx.arch.norm == "layernorm" else "rms-wide",
        dropout=litgpt_dropout(ctx), kernel=kernel, source="litgpt",
        activation=ctx.arch.activation if ctx.arch.activation != "gelu_new" else "gelu", softcap=capped(ctx),
        compiled=ctx.compiled, fused=ctx.kernels | COMPILED if ctx.compiled else ctx.kernels,
    )  # fmt: skip


def parted(names: frozenset[str], wanted: str | tuple[str, ...] | None) -> frozenset[str]:
    """litgpt's LoRAQKVLinear has an adapter for each part of the fused matrix that is enabled (lora_query, lora_key, lora_value): of all three, or of two."""
    whole = names & FUSED_QKV
    if not whole:
        return names
    listed = frozenset() if wanted is None or isinstance(wanted, str) else LITGPT_PARTS.intersection(w.rpartition(".")[2] for w in wanted)
    return (names - whole) | (LITGPT_PARTS - {"k_proj"} if wanted == "qv" else listed or LITGPT_PARTS)


def _megatron(ctx: Context, block: Block, adapted: bool) -> Setting:
    """Megatron-Core with TransformerEngine: 16-bit weights and stream, ranks that divide heads, widths and experts."""
    kernel, _ = kernel_of(ctx, block)
    method = ctx.job.method
    return Setting(
        stream=ctx.compute, weight=ctx.compute, norm=ctx.compute, compute=ctx.compute, trained=not adapted, adapted=frozenset(),
        rank=method.rank or 8, adapter=ctx.compute, dropout=method.dropout or 0.0, kernel=kernel,
        attention_dropout=ctx.arch.attention_dropout, hidden_dropout=ctx.arch.hidden_dropout, fused=COMPILED, source="megatron",
        norm_kind="layer" if ctx.arch.norm == "layernorm" else "rms", activation=ctx.arch.activation, rotary="plain" if ctx.arch.rotary else "none",
        tensor=ctx.tensor, sequence=ctx.sequence_parallel, fp8=ctx.job.precision.compute in ("fp8", "mxfp8"),
        experts="megatron", expert_ranks=ctx.expert, expert_tensor=ctx.expert_tensor,
    )  # fmt: skip


def litgpt_dropout(ctx: Context) -> float:
    """litgpt's own default where nobody wrote one (finetune/lora.py lora_dropout=0.05)."""
    said, value = ctx.run.facts.get("method.dropout"), ctx.job.method.dropout
    written = value is not None and (said is None or said.kind in ("stated", "read"))
    return value if written and value is not None else LITGPT_DROPOUT


def keeps_input(ctx: Context) -> bool:
    """bitsandbytes kept a 4-bit layer's input until 0.43.2 (MatMul4Bit, pull request 1270); litgpt required 0.42 until the end of 2024."""
    if ctx.base not in ("nf4", "fp4"):
        return False
    version = ctx.version("bitsandbytes")
    return ctx.source == "litgpt" if version is None else version < (0, 43, 2)


def experts_of(ctx: Context) -> Literal["loop", "grouped", "megatron"]:
    """How experts run: a loop over an nn.ModuleList (transformers 4), grouped products of one 3-D weight (transformers 5), Megatron's.

    torchtitan's are grouped (models/moe.py use_grouped_mm), and so is what others compile: a loop over counts of tokens is no graph.
    """
    if ctx.is_megatron or ctx.source == "megatron":
        return "megatron"
    if ctx.source == "torchtitan" or (ctx.source == "remote-code" and ctx.compiled):
        return "grouped"
    later = ctx.at_least("transformers", 5, unknown=not version_open(ctx.arch, ctx.job))
    return "grouped" if later and ctx.source == "huggingface" else "loop"


def mixed_copy(ctx: Context) -> bool:
    """Whether the strategy hands the modules weights in the compute dtype (FSDP, DeepSpeed, Megatron), so that nothing is cast inside."""
    return ctx.job.precision.mixed in ("fsdp", "deepspeed", "megatron")


def stream(ctx: Context) -> int:
    """Bytes of an element of the residual stream: the embedding's dtype; fp32 after k-bit preparation and under autocast over fp32 weights."""
    if mixed_copy(ctx):
        return ctx.compute
    kbit = ctx.method in ADAPTED and ctx.base in KBIT and ctx.job.method.kbit_preparation is True
    return 4 if kbit or ctx.arch.residual_fp32 else ctx.weight


@lru_cache(maxsize=512)
def targets(block: Block, wanted: str | tuple[str, ...] | None) -> frozenset[str]:
    """Leaf names of the linears that get an adapter."""
    linears = [t for t in block.tensors if t.linear and len(t.shape) == 2]
    if wanted is None or wanted == "all-linear":
        return frozenset(t.name for t in linears if t.role != "router")
    if wanted == "attention":
        return frozenset(t.name for t in linears if t.role == "attention")
    if wanted == "qv":
        return frozenset(t.name for t in linears if t.role == "attention" and t.name in ATTENTION_QV)
    names = {other for w in wanted for other in (w.rpartition(".")[2], *ALIASES.get(w.rpartition(".")[2], ()))}
    return frozenset(t.name for t in linears if t.name in names)
