"""The shape of a model: its tensors, and the numbers that decide what a forward pass keeps.

An :class:`Architecture` is read from a Hugging Face ``config.json`` (:func:`advisor.architecture.config.read`). The tensors are listed
one by one, with how often each occurs, because everything else derives from them: parameter counts, which matrices an adapter
or a quantiser touches, optimizer states by tensor, the sizes a failed request can have.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from msgspec import Struct

Role = Literal["embedding", "position", "head", "attention", "mlp", "expert", "shared-expert", "router", "norm", "mixer", "vision", "projector", "other"]
BlockKind = Literal["attention", "mixer", "encoder", "decoder-cross", "vision"]


class Tensor(Struct, frozen=True):
    """A weight tensor of a block (or of the model): Hugging Face's leaf name, shape ``[out, in]`` for a linear layer.

    ``times`` is how often it occurs in the block (experts: their number, and the shape is that of one expert). ``linear``: an ``nn.Linear``
    (what LoRA "all-linear" and bitsandbytes look for); experts held as one fused 3-D parameter are not linear (transformers >= 5; see
    :func:`advisor.architecture.families.experts.apart` for transformers 4). A bias is a tensor of its own, ``<layer>.bias``, not linear.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    linear: bool = True
    times: int = 1

    @property
    def elements(self) -> int:
        """Elements of one occurrence."""
        size = 1
        for side in self.shape:
            size *= side
        return size

    @property
    def total(self) -> int:
        """Elements of all occurrences in the block."""
        return self.elements * self.times


class Experts(Struct, frozen=True):
    """Mixture of experts of a block: number, chosen a token, width of one expert, width of the shared ones together (0: none)."""

    number: int
    chosen: int
    width: int
    shared_width: int = 0


class Latent(Struct, frozen=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks and head sizes. ``q_rank`` None: queries are not compressed."""

    q_rank: int | None
    kv_rank: int
    qk_nope: int
    qk_rope: int
    v_head: int


class Mixer(Struct, frozen=True):
    """A state-space or convolution mixer in place of attention: its inner width, state size, heads and convolution width."""

    kind: Literal["mamba", "mamba2", "short-conv", "gated-delta", "rwkv"]
    inner: int
    state: int
    heads: int
    conv: int
    groups: int = 1


class Block(Struct, frozen=True):
    """A kind of layer and how many layers are of it, in the order in which kinds first occur."""

    kind: BlockKind
    count: int
    tensors: tuple[Tensor, ...]
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    mlp_width: int  # dense MLP width; 0 where the block has experts only or no MLP
    gated: bool
    experts: Experts | None = None
    latent: Latent | None = None
    mixer: Mixer | None = None
    norms: int = 2  # layer or RMS norms over the hidden size
    qk_norm: bool = False
    window: int | None = None  # sliding window of attention, tokens
    parallel: bool = False  # attention and MLP read the same norm (GPT-J, NeoX, Falcon, Cohere)
    cross: bool = False  # has cross attention to an encoder
    cut: bool = False  # the MLP's gate passes only what lies above a cut by its mean and deviation
    places: tuple[int, ...] = ()  # the layers that are of this kind, from 0, where kinds alternate; else they follow one another

    @property
    def parameters(self) -> int:
        """Elements of one layer of this kind."""
        return sum(t.total for t in self.tensors)


class Architecture(Struct, frozen=True, dict=True):
    """A model's shape. ``blocks`` are the text layers (or the only layers); ``vision`` the tower's."""

    model_type: str
    hidden: int
    vocab: int
    tied: bool
    max_positions: int | None
    norm: Literal["rmsnorm", "layernorm"]
    activation: str  # silu, gelu, gelu_pytorch_tanh, relu2, ...
    blocks: tuple[Block, ...]
    outer: tuple[Tensor, ...]  # embedding, position table, final norm, head (left out where tied), projector
    vision: tuple[Block, ...] = ()
    mtp: tuple[Block, ...] = ()  # next-token-prediction layers, where the modelling code builds them (Megatron does, transformers does not)
    vision_hidden: int = 0
    vision_activation: str = "gelu"
    vision_rotary: bool = False  # the tower turns queries and keys by their place in the image
    vision_unused: int = 0  # last layers of the tower whose output nobody reads
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    softcap_attention: float | None = None
    softcap_logits: float | None = None
    causal: bool = True
    encoder_decoder: bool = False
    sources: int = 0  # positions that the encoder always has, whatever the text's length (Whisper: 1,500 of 30 seconds); 0: as many as the text
    residual_fp32: bool = False
    rotary: bool = True
    classes: int | None = None  # sequence classification instead of a language head
    unread: tuple[str, ...] = ()  # config keys that may matter and were not understood
    guessed: bool = False  # read by the look of its keys: the family has no reader
    undescribed: str = ""  # what its blocks keep that the reader knows of and no term counts, in words
    assumed: tuple[str, ...] = ()  # keys that the config leaves out, and the config class's default that was taken

    @property
    def layers(self) -> int:
        """Number of text layers."""
        return sum(b.count for b in self.blocks)

    @cached_property
    def parameters(self) -> int:
        """All elements, tied weights once, the vision tower included."""
        return sum(t.total for t in self.outer) + sum(b.count * b.parameters for b in (*self.blocks, *self.vision, *self.mtp))

    @cached_property
    def embedding_parameters(self) -> int:
        """Elements of the token embedding."""
        return sum(t.total for t in self.outer if t.role == "embedding")

    @cached_property
    def head_parameters(self) -> int:
        """Elements of the language head; 0 where it is tied to the embedding."""
        return sum(t.total for t in self.outer if t.role == "head")

    @cached_property
    def expert_parameters(self) -> int:
        """Elements of all routed experts."""
        return sum(b.count * t.total for b in (*self.blocks, *self.mtp) for t in b.tensors if t.role == "expert")

    @cached_property
    def active_parameters(self) -> int:
        """Elements a token passes through: everything but the routed experts that were not chosen."""
        idle = sum(
            b.count * t.total * (b.experts.number - b.experts.chosen) // b.experts.number
            for b in (*self.blocks, *self.mtp)
            if b.experts
            for t in b.tensors
            if t.role == "expert"
        )
        return self.parameters - idle

    @cached_property
    def largest_block(self) -> Block:
        """The kind of text layer with most parameters."""
        return max(self.blocks, key=lambda b: b.parameters)
