"""Nemotron-H: every layer is one part, a Mamba 2 mixer (M), attention (*), an MLP (-) or experts (E), by a pattern.

Source: ``modeling_nemotron_h.py`` and ``configuration_nemotron_h.py`` of transformers 5.24; arXiv 2504.03624. A layer that is an MLP or experts
alone is a block of kind ``attention`` with no heads.
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.architecture.families.dense import Heads, Size, Traits, assembled, attention, heads_of, mlp, size_of
from advisor.architecture.families.experts import Routed, expert_tensors
from advisor.architecture.families.mamba import structured_of
from advisor.architecture.keys import Keys
from advisor.architecture.layers import grouped
from advisor.architecture.pieces import linear, norm
from advisor.architecture.shape import Architecture, Block, Experts

_TRAITS = Traits(mlp="plain", activation="relu2", embedding="embeddings", final="norm_f")
_LETTERS = {"mamba": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}


def read(keys: Keys) -> Architecture:
    """The architecture by ``hybrid_override_pattern`` or ``layers_block_type``."""
    pattern = _pattern(keys)
    keys.seen.update(("intermediate_size", "moe_intermediate_size", "attention_head_dim"))
    if not keys.written("num_hidden_layers"):
        keys.config = {**keys.config, "num_hidden_layers": len(pattern)}
    size = size_of(keys)
    if len(pattern) != size.layers:
        raise keys.wrong(("num_hidden_layers",), size.layers, f"the length of the layer pattern, {len(pattern):,}")
    heads = heads_of(keys, size.hidden) if "*" in pattern else Heads(0, 0, 0)
    blocks = grouped(list(pattern), lambda letter, count: _block(keys, size, heads, letter, count))
    made = replace(assembled(keys, _TRAITS, size, blocks), rotary=False, residual_fp32=keys.flag("residual_in_fp32"))
    return replace(made, mtp=_prediction(keys, size, heads)) if keys.source == "megatron" else made


def _pattern(keys: Keys) -> str:
    kinds = keys.items("layers_block_type") if keys.written("layers_block_type") else None
    if kinds is not None:
        pattern = "".join(_LETTERS.get(str(kind), "?") for kind in kinds)
    else:
        pattern = keys.word("hybrid_override_pattern")
    if not pattern or set(pattern) - set("M*-E"):
        raise keys.wrong(("hybrid_override_pattern", "layers_block_type"), pattern, "one of M, *, - and E for every layer")
    return pattern


def _block(keys: Keys, size: Size, heads: Heads, letter: str, count: int) -> Block:
    hidden, own = size.hidden, norm("norm", size.hidden)
    if letter == "M":
        mixer, tensors = structured_of(keys, hidden)
        return Block("mixer", count, (*tensors, *own), 0, 0, 0, 0, 0, False, mixer=mixer, norms=1)
    if letter == "*":
        tensors = attention(keys, _TRAITS, hidden, heads)
        return Block("attention", count, (*tensors, *own), heads.number, heads.kv, heads.dim, heads.dim, 0, False, norms=1)
    if letter == "-":
        width = keys.size("intermediate_size")
        return Block("attention", count, (*mlp(keys, _TRAITS, hidden, width), *own), 0, 0, 0, 0, width, False, norms=1)
    number, chosen = keys.size("n_routed_experts", most=1 << 20), keys.size("num_experts_per_tok", most=1 << 20)
    shared = keys.size("moe_shared_expert_intermediate_size", least=0, default=0) * keys.size("n_shared_experts", least=0, default=1, most=1 << 20)
    routed = Routed(number, min(chosen, number), keys.size("moe_intermediate_size"), shared)
    tensors = (
        *(replace(t, linear=False) for t in linear("gate", hidden, number, "router")),
        *expert_tensors(hidden, routed, gated=False),
        *own,
    )
    return Block("attention", count, tensors, 0, 0, 0, 0, 0, False, Experts(number, routed.chosen, routed.width, shared), norms=1)


def _prediction(keys: Keys, size: Size, heads: Heads) -> tuple[Block, ...]:
    """Megatron's next-token-prediction layers: one repeated pattern, however deep; its first layer carries the projection."""
    depth = keys.optional("num_nextn_predict_layers", least=0, most=100)
    pattern = keys.word("mtp_hybrid_override_pattern")
    if not depth or not pattern or set(pattern) - set("M*-E"):
        return ()
    hidden = size.hidden
    extra = (*norm("enorm", hidden), *norm("hnorm", hidden), *linear("eh_proj", 2 * hidden, hidden, "other"), *norm("final_layernorm", hidden))
    first, *rest = (_block(keys, size, heads, letter, 1) for letter in pattern)
    return (replace(first, tensors=(*first.tensors, *extra), norms=first.norms + 3), *rest)
