"""Most tokens are padding."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.rules.situation import in_phase
from advisor.run import Run

_PACKS = frozenset({"sample_packing", "packing", "multipack"})  # axolotl, TRL and LLaMA-Factory, and what older ones called it


def _packed(evidence: Evidence) -> bool:
    return any(key.rpartition(".")[2] in _PACKS and str(value).lower() == "true" for _, key, value in evidence.seen_keys)


def _applies(run: Run, evidence: Evidence) -> str | None:
    if run.job.batch.packed is True or run.job.activations.sequence_packing == "padding-free":
        return "sequences are packed: nothing is padded"
    if _packed(evidence):
        return "samples are packed: only the end of each packed row is padded"
    return "the failure is not in a training step" if in_phase(evidence, "load", "step", "save", "resume", "merge") else None


def _mostly(run: Run, evidence: Evidence) -> str | None:
    """Half of the samples fill less than 40 % of what every sample is padded to."""
    if _to_maximum(run, evidence) is None and not any(_MAXIMUM.search(line.text) for line in evidence.lines):
        return None
    return _far_below(run)


def _spread(run: Run, _evidence: Evidence) -> str | None:
    return None if (run.job.batch.micro_batch or 1) < 2 else _far_below(run)  # of one sample, or of nobody knows how many, nothing is padded


def _far_below(run: Run) -> str | None:
    spread, length = run.job.batch.lengths, run.job.batch.seq_len
    if spread is None or not spread.p50 or not length:
        return None
    return f"samples have {spread.p50:,} tokens in the median and are padded to {length:,}" if length >= 2.5 * spread.p50 else None


def _to_maximum(_run: Run, evidence: Evidence) -> str | None:
    for where, key, value in evidence.seen_keys:
        leaf, text = key.rpartition(".")[2], str(value).lower()
        if (leaf == "padding" and text == "max_length") or (leaf in ("pad_to_max_length", "pad_to_sequence_len") and text == "true"):
            return f"{where}: every sample is padded to the longest length that is allowed"
    return None


_MAXIMUM = pattern(r"padding\s*=\s*['\"]max_length['\"]")


RULE = Rule(
    id="padding",
    tier="batch",
    title="Most of the tokens in a batch are padding",
    cleared="Nothing shows that batches are mostly padding.",
    prior=-0.8,
    applies=_applies,
    explains=("forward", "loss", "backward"),
    marks=(
        Mark(
            "padding-spread",
            1.5,
            "lengths far below the limit",
            "collators pad to the longest sample of a batch, unless told to pad to the limit",
            when=_spread,
        ),
        Mark("padding-mostly", 3.0, "mostly padding", "the samples' lengths", when=_mostly),
        Mark("padding-maximum", 2.0, "padded to the maximum", "transformers tokenizers: padding='max_length'; axolotl pad_to_sequence_len", when=_to_maximum),
        Mark(
            "padding-code",
            2.5,
            "padded to the maximum",
            "transformers tokenization_utils_base: padding='max_length'",
            # a text encoder pads its prompts always
            pattern=(
                r"^(?![^\n]*(?:prompt|caption|text_input))[^\n]*(?:padding\s*=\s*['\"]max_length['\"]|"
                r"pad_to_max_length\W{1,4}true|pad_to_sequence_len\W{1,4}true)"
            ),
            when=lambda _, e: None if _packed(e) else "",
        ),
    ),
    remedies=("sequence-packing", "shorter-sequence", "cap-longest-batch"),
    fires=(
        Example(
            "short samples in long rows",
            job=job(batch="{micro_batch: 16, seq_len: 4096, packed: false, lengths: {p50: 300, max: 4000}}", activations="{checkpointing: full}"),
            text="batch = tokenizer(texts, padding='max_length', max_length=4096, truncation=True)\n" + oom("7.00 GiB", allocated=70.0, free=7.0),
        ),
    ),
    quiet=(Example("packed", job=job(batch="{micro_batch: 8, seq_len: 4096, packed: true}"), text=oom("512.00 MiB", allocated=76.5)),),
)
