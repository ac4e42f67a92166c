"""The fused attention kernel was not used, so the score matrix is materialised."""

from __future__ import annotations

import re
from itertools import pairwise

from advisor.deviation import ineffective
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, fingerprint, snapshots
from advisor.rules.batch.batch_outlier import last_is_longest
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import guessed, share_marks
from advisor.rules.situation import in_phase
from advisor.run import Run
from advisor.spoken import with_article
from advisor.units import show

BY_CARD = (
    r"only supports? (?:Ampere|Hopper|compute capability)|compute capability .{0,40}(?:or (?:higher|newer)|required|not supported)|"
    r"requires device with capability [><=]+ ?\(|CUDA capability sm_\d+ is not compatible"
)
FUSED = frozenset({"sdpa", "flash-2", "flash-3", "flex", "xformers", "te-fused"})
NO_FUSED = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers", "deberta-v2", "deberta"})  # transformers modeling code: _supports_sdpa is not set
_PLACES = pattern(r"^(?:self\.)?\w*(?:model|module|block|layer|net|encoder|decoder)\w*\.(?:to|cuda)\(")  # of whole modules
SOFTCAP_KNOWN = "the model's attention has a soft cap, which SDPA does not take"


def _request(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "attention", alone=True)


def _also(run: Run, evidence: Evidence) -> str | None:
    """Another tensor of the run has the same size."""
    return None if _request(run, evidence) else fingerprint.match(run, evidence, "attention")


def _past_it(run: Run, evidence: Evidence) -> str | None:
    """The request is the logits', which come after all layers: no layer's scores were in the way."""
    return "the failed request is of logits: the layers before had gone through" if fingerprint.match(run, evidence, "logits", alone=True) else None


def _square(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "mask", alone=True)


def _square_among(run: Run, evidence: Evidence) -> str | None:
    """A row of hidden states times the length can be as large."""
    return None if _square(run, evidence) else fingerprint.match(run, evidence, "mask")


def _square_of_code(_run: Run, evidence: Evidence) -> str | None:
    """Lengths in the shown code whose square is the request, for a usual element size; not while modules are placed: no scores are made then."""
    if evidence.failure is not None and evidence.failure.frames and _PLACES.search(evidence.failure.frames[-1].code):
        return None
    if in_phase(evidence, "load", "resume", "save", "merge"):
        return None  # scores are made in a forward pass
    return fingerprint.square(evidence)


_OF_SCORES = pattern(r"baddbmm|\bbmm\b|softmax|matmul|scores|attn|attention|q\s?@\s?k|qk", re.IGNORECASE)
LEAST_SQUARES = 4  # bytes of a square's element, all heads of the batch together: two heads in 16 bit


def _rises_by_squares(run: Run, evidence: Evidence) -> str | None:
    """Figures printed around an attention's products: the allocated bytes rise by whole multiples of 2 x seq_len² there."""
    length = run.job.batch.seq_len
    if length is None or guessed(run, "batch.seq_len"):
        return None
    found = []
    for before, after in pairwise([s for s in evidence.samples if s.allocated_bytes is not None]):
        rise = (after.allocated_bytes or 0) - (before.allocated_bytes or 0)
        squares = rise / length**2
        if squares >= LEAST_SQUARES and abs(squares - round(squares)) < 0.01 and round(squares) % 2 == 0 and _OF_SCORES.search(after.label):
            found.append((after, rise))
    if len(found) < 2:
        return None
    sample, rise = found[0]
    return f"{show(rise)} more after {sample.label.strip()[:40]} ({sample.where}): {round(rise / length**2)} x {length:,}² bytes"


def _head_dim(run: Run, _evidence: Evidence) -> str | None:
    shape = run.architecture
    if shape is None or run.job.activations.attention not in ("sdpa", None):
        return None
    widest = max((b.head_dim for b in shape.blocks if b.kind != "mixer"), default=0)
    return f"head_dim {widest} is larger than 256: no fused kernel takes it in training" if widest > 256 else None


def _softcap(run: Run, evidence: Evidence) -> str | None:
    shape = run.architecture
    if in_phase(evidence, "load", "save", "resume", "merge", "step"):
        return None
    return SOFTCAP_KNOWN if shape is not None and shape.softcap_attention and run.job.activations.attention in ("sdpa", "eager", None) else None


def _eager(run: Run, _evidence: Evidence) -> str | None:
    fact = run.facts.get("activations.attention")
    chosen = run.job.activations.attention == "eager" and fact is not None and fact.kind in ("stated", "read", "inferred")
    return f"eager attention is set ({fact.where or fact.kind})" if chosen and fact is not None else None


def _old_card(run: Run, evidence: Evidence) -> str | None:
    card = run.card
    if in_phase(evidence, "load", "save", "resume", "merge", "step"):  # no scores are made then
        return None
    if card is None or card.sm is None or card.sm >= 80 or run.job.precision.compute != "bf16" or guessed(run, "precision.compute"):
        return None
    return f"{with_article(card.name)} (compute capability {card.capability}) has no fused bf16 attention kernel"


def _no_fused(run: Run, _evidence: Evidence) -> str | None:
    shape = run.architecture
    major = str((run.job.framework.versions or {}).get("transformers", "")).partition(".")[0]
    if shape is None or shape.model_type not in NO_FUSED or (major.isdigit() and int(major) >= 5):
        return None
    return f"{shape.model_type} has a position bias in its scores and no fused attention to fall back from"


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    if run.job.activations.attention not in FUSED:
        return None
    return run.deviating(ineffective("activations.attention", cause="attention-fallback"))


_COMPILE = pattern(r"(?:^|[._-])(?:torch_)?compile(?:_model|d)?$", re.IGNORECASE)


def _uncompiled(run: Run, evidence: Evidence) -> str | None:
    """Compiling is switched off where flex attention is on; where torch itself warns, that is enough."""
    if any("called without torch.compile" in line.text for line in evidence.lines):
        return ""
    off = any(_COMPILE.search(key) and str(value).lower() == "false" for _, key, value in evidence.seen_keys)
    return "" if off and not run.job.activations.compile else None


_MAKES_SCORES = r"eager_attention_forward: |_math_attention_inner: |attn_weights\s*=|(attention|attn)_(scores|probs)(\s*:\s*\w+)?\s*=|\bscores\s*="
LARGE = 0.1  # of the card, for one layer's scores
_MADE_THERE = re.compile(_MAKES_SCORES)
_TOWER = pattern(r"visual|vision|image|pixel|\bblk\(|cu_seqlens", re.IGNORECASE)  # transformers modeling_*vl*.py: blk(hidden_states, cu_seqlens=...)


def _large(_run: Run, evidence: Evidence) -> str | None:
    """The innermost line makes the scores of one layer, and they are a good part of the card: whatever else is held, this is what has no room."""
    failure, figures = evidence.failure, counters.of(evidence)
    inner = failure.frames[-1] if failure is not None and failure.frames else None
    if inner is None or figures.requested is None or figures.capacity is None or not LARGE * figures.capacity <= figures.requested <= 100 * figures.capacity:
        return None
    if not _MADE_THERE.search(f"{inner.file}:{inner.function}: {inner.code}") or any(_TOWER.search(f"{f.function}: {f.code}") for f in evidence.frames):
        return None  # of a tower for images the length is the number of patches
    return f"one layer's scores are {show(figures.requested)} of a card of {show(figures.capacity)}"


RULE = Rule(
    id="attention-fallback",
    tier="fallback",
    title="The attention scores are materialised: the fused kernel is not used",
    cleared="The fused attention kernel is used: no tensor of the size of the score matrix.",
    prior=-1.0,
    explains=("forward", "backward", "eval"),
    marks=(
        Mark("attention-fallback-request", 3.5, "the request is a score matrix", "softmax(Q Kᵀ) has batch x heads x seq_len² elements", when=_request),
        Mark("attention-fallback-among", 1.8, "the request can be a score matrix", "the same product; another tensor has the same size", when=_also),
        Mark(
            "attention-fallback-uncompiled",
            3.0,
            "flex attention without torch.compile",
            "torch/nn/attention/flex_attention.py: called without torch.compile it materialises the full scores matrix",
            pattern=r"attention backend '?flex|flex_attention called without torch\.compile|FLEX_ATTN\s?=\s?(1|True)|attn_implementation\W{1,4}flex_attention",
            when=_uncompiled,
        ),
        Mark("attention-fallback-square", 2.5, "the request is a square mask", "a dense mask or block mask has seq_len² elements", when=_square),
        Mark(
            "attention-fallback-square-among", 0.8, "the request can be a square mask", "the same product; another tensor has the same size", when=_square_among
        ),
        Mark("attention-fallback-lengths", 2.5, "a square of a shown length", "a dense mask has length² elements", when=_square_of_code),
        Mark(
            "attention-fallback-frame",
            3.5,
            "the unfused attention code is running",
            "transformers eager_attention_forward; torch _math_attention_inner, create_mask; Megatron DotProductAttention",
            pattern=r"eager_attention_forward|_math_attention_inner|flex_attention\.py:create_(block_)?mask|math_attention|attn_weights\s*=\s*(nn\.functional|F|torch)\S*softmax|"
            r"torch\.matmul\(\s*q\w*\s*,\s*k\w*|attn_weights\s*=\s*torch\.(matmul|bmm)|scores\s*=\s*\(?q\w*\s*@\s*k|(attention|attn)_(scores|logits|probs)(\s*:\s*\w+)?\s*=|scale_mask_softmax|baddbmm|"
            r"megatron/\S*/dot_product_attention\.py:forward: (?:key|value) = \w+\.repeat_interleave|"
            r"UnfusedDotProductAttention|_attn\(self, query|get_attention_scores|"
            r"\b(att|attn|attn_\w+|attention_\w+|scores?|dots|aff|sim)\s*=\s*[^#\n]{0,40}softmax\(|"
            r"\b(att|attn|attn_\w+|scores?|dots|aff|sim)\s*=\s*\(?\s*(torch\.(matmul|bmm|einsum)\(|einsum\()?[^=\n]{0,20}\b(q|query\w*|xq|q_\w+)\b[^=\n]{0,30}(@|\bk\b|key|xk)",
            on="frame",
        ),
        Mark(
            "attention-fallback-large",
            2.0,
            "one tensor of scores",
            "softmax(Q Kᵀ) has batch x heads x seq_len² elements, and the line that makes it is the one that fails",
            pattern=_MAKES_SCORES,
            on="frame",
            when=_large,
        ),
        Mark(
            "attention-fallback-mask",
            2.5,
            "a dense mask of seq_len² is being made",
            "transformers modeling_attn_mask_utils, masking_utils: 4-D causal masks; BLOOM and MPT build ALiBi biases",
            pattern=(
                r"_prepare_4d_(causal_)?attention_mask|_update_causal_mask|_?make_causal_mask|_expand_mask|masking_utils\.py|build_alibi|"
                r"build_mpt_alibi|get_masks\b"
            ),
            on="frame",
        ),
        Mark(
            "attention-fallback-program",
            4.0,
            "the largest buffer of the compiled program is an attention's scores, length by length",
            "xla buffer assignment: op_name and shape of the largest buffers; a fused kernel (splash, cuDNN, Pallas flash) makes no such buffer",
            pattern=r"(?:attention|attn)\S*(?:/\S+)? -> \w+\[(?:\d+,)*(\d{3,6}),\1\]",
            on="frame",
        ),
        Mark(
            "attention-fallback-sdpa",
            1.2,
            "the failure comes inside scaled_dot_product_attention",
            "ATen sdp_utils.cpp: flash and memory-efficient kernels ask for no seq_len² tensor, the math path does",
            pattern=r"scaled_dot_product_attention\(|sdpa_attention_forward",
            on="frame",
        ),
        Mark(
            "attention-fallback-says-eager",
            3.5,
            "the library says that it falls back to the unfused code",
            "LLaMA-Factory attention.py; transformers modeling_utils; torch flex_attention warning 'unfused implementation'",
            when=lambda _, e: None if in_phase(e, "load") else "",
            pattern=r"(use|using|fall(ing|s)? ?back to|default(ing)? to) (the )?(eager|math|manual|naive|vanilla|slow|unfused)\b"
            r"[^.\n]{0,60}(attention|attn|implementation|sdpa|kernel)|"
            r"unfused implementation|not running the flash-attention implementation|materializes the full scores matrix|flash_attn.{0,60}undefined symbol|"
            r"[Ff]lash ?[Aa]ttention.{0,40}(not (installed|available|supported)|only supports|is disabled|failed to import|undefined symbol)",
        ),
        Mark(
            "attention-fallback-printed",
            4.0,
            "what is allocated rises by whole squares of the length",
            "softmax(Q Kᵀ): batch x heads x seq_len² elements, once for the product, once for the softmax, once for the dropout and its mask",
            when=_rises_by_squares,
        ),
        Mark(
            "attention-fallback-by-card",
            -5.0,
            "the card is why: it supports no such kernel",
            "flash-attn, torch/cuda/__init__.py, xformers: their capability checks",
            pattern=BY_CARD,
        ),
        Mark(
            "attention-fallback-asked-for",
            2.5,
            "the attention weights are asked for: no fused kernel returns them",
            "transformers: output_attentions=True falls back to eager (sdpa_attention, flash_attention_2 return none)",
            pattern=r"\boutput_attentions['\"]?\s*[=:]\s*True|need_weights\s*=\s*True",
        ),
        Mark(
            "attention-fallback-went-through",
            -2.0,
            "the same code went through with shorter batches",
            "what differs from step to step is the batch, not the kernel",
            when=last_is_longest,
        ),
        Mark("attention-fallback-later", -2.5, "logits", "scores of every layer are made before the logits are", when=_past_it),
        Mark("attention-fallback-head-dim", 1.5, "wide heads", "ATen sdp_utils.cpp check_head_dim_size: flash and cuDNN take at most 256", when=_head_dim),
        Mark("attention-fallback-softcap", 1.0, "soft cap", "transformers: attn_logit_softcapping needs eager or flex", when=_softcap),
        Mark("attention-fallback-eager", 1.5, "eager", "attn_implementation", when=_eager),
        Mark("attention-fallback-card", 0.3, "old card", "ATen sdp_utils.cpp: bf16 needs compute capability 8.0", when=_old_card),
        Mark(
            "attention-fallback-none",
            -2.5,
            "no fused kernel",
            "transformers before 5, modeling_t5.py: scores are always made; modeling_deberta_v2.py has no SDPA",
            when=_no_fused,
        ),
        *share_marks("attention-fallback", "attention", some=0.2, most=0.4, weights=(1.0, 1.5), noun="attention scores", unless=_no_fused),
        *snapshots.part_marks("attention-fallback", "attention"),
    ),
    fault=_fault,
    remedies=("restore-flash-attention", "gradient-checkpointing", "shorter-sequence"),
    fires=(
        Example(
            "a model's own attention",
            text=trace("model.py|forward|x = block(x)", "model.py|forward|att = F.softmax(att, dim=-1)") + oom("2.00 GiB", allocated=76.0, free=1.1),
        ),
        Example(
            "printed around the products of an attention",
            text="seq_length 2048, batch 1\n[before scores] allocated: 30120.00 MB\n"
            "[after baddbmm] allocated: 30376.00 MB\n[after softmax] allocated: 30632.00 MB\n"
            "Why is it OOM when I train with Megatron on this card? It is OOM in every run.\n",
        ),
        Example(
            "eager attention",
            job=job("meta-llama/Llama-2-7b-hf", batch="{micro_batch: 2, seq_len: 8192}", activations="{attention: eager, checkpointing: full}"),
            text=trace(
                "transformers/models/llama/modeling_llama.py|forward",
                (
                    "transformers/models/llama/modeling_llama.py|eager_attention_forward|attn_weights = nn.functional.softmax(attn_weights, "
                    "dim=-1, dtype=torch.float32)"
                ),
            )
            + oom("16.00 GiB", allocated=65.0, free=12.0),
        ),
    ),
    quiet=(
        Example(
            "flash attention, logits",
            job=job(batch="{micro_batch: 6, seq_len: 8192}", activations="{attention: flash-2, checkpointing: full}"),
            text=trace("transformers/models/llama/modeling_llama.py|forward|logits = logits.float()") + oom("23.48 GiB", allocated=60.0, free=17.0),
        ),
    ),
)
