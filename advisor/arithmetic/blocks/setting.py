"""Setting: everything beside a block's shape that decides what autograd keeps of it. Small, frozen, hashable."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kernel = Literal["flash", "efficient", "cudnn", "math", "eager", "flex", "te-fused", "te-unfused"]


class Setting(Struct, frozen=True):
    """How a block runs. Sizes are bytes of one element; ranks are 1 where not divided."""

    stream: int = 2  # the residual stream as the block receives it
    weight: int = 2  # linear weights that are not quantised
    norm: int = 2  # norm weights (4 after k-bit preparation)
    compute: int = 2  # what autocast or a quantised layer computes in
    autocast: bool = False
    trained: bool = True  # the block's own weights get gradients
    input_grad: bool = True  # gradients pass to the block's input
    base: str = "none"  # layout of the frozen linear weights
    adapted: frozenset[str] = frozenset()  # leaf names of linears with an adapter
    rank: int = 0
    keeps_input: bool = False  # bitsandbytes before 0.43.2: a 4-bit layer keeps its input
    adapter: int = 4  # adapter weights
    dropout: float = 0.0
    dora: bool = False
    kernel: Kernel = "flash"
    masked: bool = False  # an attention mask is given
    bias: int = 0  # bytes of an element of the mask that each call of the memory-efficient kernel makes of truth values
    expanded: bool = False  # keys and values are copied to all heads before the kernel
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    inner_dropout: float = 0.0  # between activation and down projection
    fused: frozenset[str] = frozenset()  # rmsnorm, swiglu, rope, layernorm, lora
    source: str = "huggingface"
    norm_kind: str = "rms"  # rms, rms-both, rms-wide, layer, layer-wide, layer-float (traits.py)
    activation: str = "silu"
    rotary: str = "plain"  # none, plain, joined, wide (traits.py)
    heads_first: bool = False  # query, key and value lie heads first, so that the kernel's output is copied into the order of tokens
    parts_copied: bool = False  # query, key and value are copied out of the fused projection
    laid_out: bool = False  # query, key and value are copied into the order that the kernel for rows without padding reads
    post: bool = False  # norms follow attention and MLP
    around: bool = False  # each norm takes the sum of a branch and its residual (BERT)
    wide_qk: bool = False  # query and key norms over all heads
    bare_qk: bool = False  # query and key norms without a weight
    value_norm: bool = False  # values are normed too, without a weight
    wide_router: bool = False  # the router works on fp32 copies of its input and weight
    wide_weights: bool = False  # routing weights stay in fp32, so that they widen the experts' output
    all_experts: bool = False  # every expert computes every token
    tensor: int = 1
    sequence: bool = False  # sequence parallelism: Megatron's, or DTensor's Shard(1) between the linears
    experts: Literal["loop", "grouped", "megatron"] = "grouped"
    experts_quantised: bool = True  # whether the quantiser reaches routed experts (3-D parameters of transformers 5 it does not)
    experts_adapted: bool = False  # adapters are folded into the experts' weights for each pass
    expert_ranks: int = 1
    expert_tensor: int = 1
    softcap: bool = False
    wide_scores: bool = False  # scores of eager code are products of queries and keys in fp32
    returns_weights: bool = False  # the block returns its attention weights to a caller that keeps them while it runs backward
    math_wide: bool = True  # the math kernel computes in fp32
    narrow_softmax: bool = False  # the softmax of eager code in the scores' own dtype
    floored: bool = False  # torch.max of the masked scores and the dtype's least number
    softmax_keeps: bool = False  # autograd keeps a softmax's input beside its output (torch before 1.11)
    dropout_mask: int = 1  # bytes of a dropout mask: native_dropout on CUDA keeps a bool
    compiled: bool = False
    fp8: bool = False  # TransformerEngine linears keep their inputs in one byte an element
    nvfp4: bool = False  # torchao's training linears: what they keep is in NVFP4 codes
    tile: int = 0  # tokens of a tile of the feed-forward part; 0: it runs on all at once
    tiles: int = 1
    tiles_joined: bool = True  # a list of the tiles' outputs is joined, which holds them twice
    cached_keys: bool = False  # use_cache stays on: keys and values of the pass stay referenced
