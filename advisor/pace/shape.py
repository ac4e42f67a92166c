"""The sizes that the time of a step depends on, read once from a run."""

from __future__ import annotations

from msgspec import Struct

from advisor.architecture import Architecture
from advisor.job import Job
from advisor.run import Run

MATRIX_ROLES = frozenset({"attention", "mlp", "expert", "shared-expert", "router", "mixer", "vision", "projector"})
WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
BITS = {"nf4": 4.127, "fp4": 4.127, "int8": 8.0, "gptq-int4": 4.16, "awq-int4": 4.16, "fp8": 8.0, "mxfp4": 4.25}  # facts A3, bits a parameter
PYTHON_GELU = frozenset({"gelu_new", "gelu_fast", "gelu_python", "quick_gelu", "gelu_accurate", "relu2"})  # transformers activations.py
ADAPTERS = frozenset({"lora", "dora"})


class Sizes(Struct, frozen=True):
    """Of one rank and one micro-batch. Elements are of the whole model; ``tokens`` are those that this rank computes."""

    tokens: float  # micro_batch x seq_len / context
    seq_len: float
    passes: float  # micro-batches of one step
    block_elements: float  # matrix elements of all blocks that a token passes through
    expert_elements: float  # of these, in routed experts
    widths: float  # summed input and output widths of the matrices that a token passes through
    chosen: float  # experts a token, summed over layers
    expert_layers: float
    head_elements: float
    parameters: float  # all, experts that were not chosen included
    trained: float  # parameters with a gradient
    adapter_elements: float
    adapted_elements: float  # of the matrices that have an adapter
    adapted_in: float  # sum over adapted matrices of their input widths, all layers
    adapted_out: float
    layers: float
    hidden: float
    mlp_width: float  # width that a token passes through, mean of the layers
    key_width: float  # kv heads x head size
    query_width: float
    value_width: float
    window: float | None
    vocab: float
    tensor: int
    pipeline: int
    data_ranks: int
    gated: bool
    layer_norm: bool  # torch's own kernel, where RMSNorm is eager arithmetic
    python_gelu: bool  # gelu_new and alike are written out in several kernels
    rotary: bool
    capped: bool  # attention scores are capped: SDPA writes them out
    useful: float  # share of the tokens that are no padding


def sizes(run: Run, job: Job) -> Sizes | None:
    """The sizes of a run's step; ``None`` where the model, the micro batch or the sequence length is not known."""
    a, b, p = run.architecture, job.batch, job.parallel
    if a is None or b.seq_len is None or (b.micro_batch is None and b.token_budget is None):
        return None
    seq_len = float(b.seq_len)
    tokens = float(b.micro_batch * b.seq_len) if b.micro_batch is not None else float(b.token_budget or b.seq_len)
    context = p.context or 1
    elements, experts, widths, adapters, adapted, wide_in, wide_out = _matrices(a, job)
    layers = float(a.layers)
    head = 0.0 if a.classes is not None else float(a.hidden * a.vocab)
    attending = [block for block in a.blocks if block.heads] or list(a.blocks)
    main = max(attending, key=lambda block: block.count)
    width = sum(
        block.count * (block.experts.chosen * block.experts.width + block.experts.shared_width if block.experts else block.mlp_width) for block in a.blocks
    ) / max(layers, 1)
    pipeline = p.pipeline or 1
    passes = float((p.microbatches or 1) if pipeline > 1 else 1) * (b.gradient_accumulation or 1)
    windows = [block.window for block in a.blocks]
    return Sizes(
        tokens=tokens / context,
        seq_len=seq_len,
        passes=passes,
        block_elements=elements,
        expert_elements=experts,
        widths=widths,
        chosen=float(sum(block.count * block.experts.chosen for block in a.blocks if block.experts)),
        expert_layers=float(sum(block.count for block in a.blocks if block.experts)),
        head_elements=head,
        parameters=float(a.parameters),
        trained=adapters if job.method.kind in ADAPTERS else float(a.parameters) * _trained_share(job),
        adapter_elements=adapters,
        adapted_elements=adapted,
        adapted_in=wide_in,
        adapted_out=wide_out,
        layers=layers,
        hidden=float(a.hidden),
        mlp_width=width,
        key_width=float(main.kv_heads * main.head_dim),
        query_width=float(main.heads * main.head_dim),
        value_width=float(main.heads * main.v_head_dim),
        window=float(windows[0]) if windows and all(w is not None and w == windows[0] for w in windows) and windows[0] is not None else None,
        vocab=float(a.vocab),
        tensor=p.tensor or 1,
        pipeline=pipeline,
        data_ranks=max(1, (p.shard or 1) * (p.replicate or 1) // context),
        gated=main.gated,
        layer_norm=a.norm == "layernorm",
        python_gelu=a.activation in PYTHON_GELU,
        rotary=a.rotary,
        capped=bool(a.softcap_attention),
        useful=_useful(job),
    )


def _trained_share(job: Job) -> float:
    """Share of the parameters with a gradient in a step: BAdam and LISA train one block (or few) at a time, freezing usually the last layers."""
    return {"badam": 0.05, "lisa": 0.1, "freeze": 0.1}.get(job.method.kind or "full", 1.0)


def _useful(job: Job) -> float:
    """Share of tokens that are no padding. Without lengths nothing is claimed."""
    b = job.batch
    if b.packed or job.activations.sequence_packing == "padding-free" or b.lengths is None or b.seq_len is None:
        return 1.0
    if b.lengths.histogram:
        total = sum(n for _, n in b.lengths.histogram)
        return min(1.0, sum(min(upper, b.seq_len) * n for upper, n in b.lengths.histogram) / max(total, 1) / b.seq_len)
    return min(1.0, b.lengths.p50 / b.seq_len) if b.lengths.p50 is not None else 1.0


def _matrices(a: Architecture, job: Job) -> tuple[float, float, float, float, float, float, float]:
    """Matrix elements that a token passes through, those in routed experts, widths of all; elements of adapters; elements and widths of adapted matrices."""
    method = job.method
    rank = method.rank or 16
    elements = experts = widths = adapters = adapted = wide_in = wide_out = 0.0
    for block in a.blocks:
        for t in block.tensors:
            if t.role not in MATRIX_ROLES or len(t.shape) < 2:
                continue
            share = block.experts.chosen / block.experts.number if t.role == "expert" and block.experts else 1.0
            elements += block.count * t.total * share
            experts += block.count * t.total * share if t.role == "expert" else 0.0
            widths += block.count * t.times * share * (float(t.shape[-1]) + float(t.shape[-2]))
            if method.kind in ADAPTERS and _adapted(t.name, t.role, t.linear, method.targets):
                out_width, in_width = float(t.shape[-2]), float(t.shape[-1])
                adapters += block.count * t.times * rank * (in_width + out_width)
                adapted += block.count * t.times * out_width * in_width
                wide_in += block.count * t.times * share * in_width
                wide_out += block.count * t.times * share * out_width
    return elements, experts, widths, adapters, adapted, wide_in, wide_out


def _adapted(name: str, role: str, linear: bool, targets: object) -> bool:
    if targets == "qv":
        return name.startswith(("q_", "v_")) or name in ("q_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value")
    if targets == "attention":
        return role == "attention"
    if isinstance(targets, tuple):
        return any(name == t or name.endswith(t) or t in name for t in targets)
    return linear and role in ("attention", "mlp", "shared-expert", "expert", "mixer")
