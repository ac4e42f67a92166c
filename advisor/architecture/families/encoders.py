"""Text encoders: BERT, RoBERTa, DeBERTa-v2/v3, ELECTRA, DistilBERT, ModernBERT.

Source: ``modeling_<family>.py`` of transformers 5.24; shapes and names checked by building on the meta device. Which head there is
follows ``architectures``; a config without it is the bare encoder with its pooler and no head at all (``classes`` 0).
"""

from __future__ import annotations

from msgspec import Struct

from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.layers import grouped
from advisor.architecture.pieces import embedding, fused_attention, linear, norm, parameter, plain_mlp, split_attention
from advisor.architecture.shape import Architecture, Block, Tensor

_BERT = ("query", "key", "value", "dense")
_NAMES = {"deberta-v2": ("query_proj", "key_proj", "value_proj", "dense"), "distilbert": ("q_lin", "k_lin", "v_lin", "out_lin")}
_ROBERTA = ("roberta", "xlm-roberta", "camembert")


class Head(Struct, frozen=True):
    """What sits on the encoder: its tensors, and the classes it tells apart (``None``: a language head)."""

    tensors: tuple[Tensor, ...]
    classes: int | None


def read(keys: Keys) -> Architecture:
    """The architecture."""
    if keys.model_type == "modernbert":
        return _modern(keys)
    hidden, layers = keys.required("hidden_size", "dim"), keys.required("num_hidden_layers", "n_layers", most=MOST_LAYERS)
    number = keys.size("num_attention_heads", "n_heads", most=65_536)
    keys.seen.add("num_key_value_heads")
    if hidden % number:
        raise keys.wrong(("num_attention_heads", "n_heads"), number, f"a divisor of the hidden size {hidden:,}")
    width = keys.size("intermediate_size", "hidden_dim")
    distil = keys.model_type == "distilbert"
    mlp_names = ("lin1", "lin2") if distil else ("intermediate.dense", "output.dense")
    norms = ("sa_layer_norm", "output_layer_norm") if distil else ("LayerNorm", "LayerNorm")
    tensors = (
        *split_attention(hidden, number, number, hidden // number, names=_NAMES.get(keys.model_type, _BERT), bias=True, out_bias=True),
        *(t for t in _leaf(plain_mlp(hidden, width, names=mlp_names, bias=True))),
        *(t for name in norms for t in norm(name, hidden, bias=True)),
    )
    block = Block("encoder", layers, tensors, number, number, hidden // number, hidden // number, width, gated=False)
    vocab, word = keys.size("vocab_size"), (keys.optional("embedding_size") or hidden) if keys.model_type in ("electra", "deberta-v2") else hidden
    head = _head(keys, hidden, vocab)
    return Architecture(
        model_type=keys.model_type,
        hidden=hidden,
        vocab=vocab,
        tied=keys.flag("tie_word_embeddings", default=True),
        max_positions=keys.optional("max_position_embeddings"),
        norm="layernorm",
        activation=keys.word("hidden_act", "activation", default="gelu"),
        blocks=(block,),
        outer=(*_tables(keys, vocab, word, hidden), *_relative(keys, hidden), *head.tensors),
        attention_dropout=keys.fraction("attention_probs_dropout_prob", "attention_dropout"),
        hidden_dropout=keys.fraction("hidden_dropout_prob", "dropout"),
        causal=False,
        rotary=False,
        classes=head.classes,
    )


def _leaf(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Both layers of BERT's MLP end in ``dense``; their leaf name is that."""
    return tuple(Tensor(t.name.replace("intermediate.", "").replace("output.", ""), t.shape, t.role, t.linear, t.times) for t in tensors)


def _tables(keys: Keys, vocab: int, word: int, hidden: int) -> tuple[Tensor, ...]:
    positions, kinds = keys.size("max_position_embeddings", default=512), keys.size("type_vocab_size", least=0, default=0)
    positioned = keys.model_type != "deberta-v2" or keys.flag("position_biased_input", default=True)
    project = "embed_proj" if keys.model_type == "deberta-v2" else "embeddings_project"
    return (
        *embedding("word_embeddings", vocab, word),
        *(parameter("position_embeddings", (positions, word), "position") if positioned else ()),
        *(parameter("token_type_embeddings", (kinds, word), "position") if kinds and keys.model_type != "distilbert" else ()),
        *norm("LayerNorm", word if keys.model_type == "electra" else hidden, bias=True),
        *(linear(project, word, hidden, "other", bias=keys.model_type == "electra") if word != hidden else ()),
    )


def _relative(keys: Keys, hidden: int) -> tuple[Tensor, ...]:
    """DeBERTa's table of relative positions, shared by its layers; its projections are the layers' own (``share_att_key``)."""
    if keys.model_type != "deberta-v2" or not keys.flag("relative_attention"):
        return ()
    buckets = keys.raw("position_buckets")
    furthest = keys.raw("max_relative_positions")
    span = (
        buckets
        if isinstance(buckets, int) and buckets > 0
        else furthest
        if isinstance(furthest, int) and furthest > 0
        else keys.size("max_position_embeddings")
    )
    normed = "layer_norm" in keys.word("norm_rel_ebd", default="none")
    return (*parameter("rel_embeddings", (2 * span, hidden), "position"), *(norm("LayerNorm", hidden, bias=True) if normed else ()))


def classes_of(keys: Keys) -> int:
    """Classes of a classifier: ``num_labels``, else the labels listed, else 2."""
    number = keys.optional("num_labels", least=1, most=10_000_000)
    labels = keys.config.get("id2label")
    return number or (len(labels) if isinstance(labels, dict) and labels else 2)


def _head(keys: Keys, hidden: int, vocab: int) -> Head:
    named = " ".join(str(n) for n in keys.items("architectures", most=20) or ())
    pooler = linear("pre_classifier" if keys.model_type == "distilbert" else "dense", hidden, hidden, "other", bias=True)
    roberta = keys.model_type in _ROBERTA
    if "ForSequenceClassification" in named or "ForMultipleChoice" in named:
        classes = 1 if "ForMultipleChoice" in named else classes_of(keys)
        out = linear("out_proj" if roberta or keys.model_type == "electra" else "classifier", hidden, classes, "other", bias=True)
        return Head((*pooler, *out), classes)
    if "ForTokenClassification" in named or "ForQuestionAnswering" in named:
        classes = classes_of(keys)
        return Head(linear("classifier", hidden, classes, "other", bias=True), classes)
    if "ForMaskedLM" in named or "ForPreTraining" in named or keys.source == "megatron":
        transform = (*pooler, *norm("LayerNorm", hidden, bias=True), *parameter("bias", (vocab,), "head"))
        untied = () if keys.flag("tie_word_embeddings", default=True) else linear("decoder", hidden, vocab, "head")
        pair = (*pooler, *linear("seq_relationship", hidden, 2, "other", bias=True)) if "ForPreTraining" in named or keys.source == "megatron" else ()
        return Head((*transform, *untied, *pair), None)
    return Head(pooler if keys.model_type not in ("deberta-v2", "electra", "distilbert") else (), 0)


def _modern(keys: Keys) -> Architecture:
    hidden, layers, width = keys.required("hidden_size"), keys.required("num_hidden_layers", most=MOST_LAYERS), keys.size("intermediate_size")
    number, vocab = keys.size("num_attention_heads", most=65_536), keys.size("vocab_size")
    if hidden % number:
        raise keys.wrong(("num_attention_heads",), number, f"a divisor of the hidden size {hidden:,}")
    bias, scale_bias, mlp_bias = keys.flag("attention_bias"), keys.flag("norm_bias"), keys.flag("mlp_bias")
    every, window = keys.size("global_attn_every_n_layers", default=3, most=MOST_LAYERS), keys.size("local_attention", default=128)

    def build(kind: tuple[bool, bool], count: int) -> Block:
        first, full = kind  # the first layer has no norm before its attention: the embedding's norm is just before it
        tensors = (
            *fused_attention(hidden, number, number, hidden // number, names=("Wqkv", "Wo"), bias=bias, out_bias=bias),
            *linear("Wi", hidden, 2 * width, "mlp", bias=mlp_bias),
            *linear("Wo", width, hidden, "mlp", bias=mlp_bias),
            *(() if first else norm("attn_norm", hidden, bias=scale_bias)),
            *norm("mlp_norm", hidden, bias=scale_bias),
        )
        dim = hidden // number
        return Block("encoder", count, tensors, number, number, dim, dim, width, True, norms=1 if first else 2, window=None if full else window)

    blocks = grouped([(index == 0, index % every == 0) for index in range(layers)], build)
    named = " ".join(str(n) for n in keys.items("architectures", most=20) or ())
    head: tuple[Tensor, ...] = ()
    classes: int | None = 0
    if "For" in named:
        head, classes = (*linear("dense", hidden, hidden, "other", bias=keys.flag("classifier_bias")), *norm("norm", hidden, bias=scale_bias)), None
        if "ForMaskedLM" in named:
            head = (*head, *(parameter("decoder.bias", (vocab,), "head") if keys.flag("decoder_bias", default=True) else ()))
        else:
            classes = classes_of(keys)
            head = (*head, *linear("classifier", hidden, classes, "other", bias=True))
    return Architecture(
        model_type="modernbert",
        hidden=hidden,
        vocab=vocab,
        tied=keys.flag("tie_word_embeddings", default=True),
        max_positions=keys.optional("max_position_embeddings"),
        norm="layernorm",
        activation=keys.word("hidden_activation", default="gelu"),
        blocks=blocks,
        outer=(*embedding("tok_embeddings", vocab, hidden), *norm("norm", hidden, bias=scale_bias), *norm("final_norm", hidden, bias=scale_bias), *head),
        attention_dropout=keys.fraction("attention_dropout"),
        hidden_dropout=keys.fraction("mlp_dropout"),
        causal=False,
        classes=classes,
    )
