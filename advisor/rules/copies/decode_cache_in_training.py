"""``use_cache`` fills a KV cache nobody reads."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import TRAINING, in_phase
from advisor.run import Run


def _on(run: Run, evidence: Evidence) -> str | None:
    fact = run.facts.get("framework.use_cache")
    if run.job.framework.use_cache is not True or fact is None or fact.kind in ("assumed", "default"):
        return None
    return "the forward pass in training fills a key-value cache" if in_phase(evidence, *TRAINING) or evidence.failure is None else None


_FILLS = pattern(r"cache_utils\.py:(update|lazy_initialization)|past_key_values?\.update|torch\.cat\(\s*[(\[]\s*past_(key|value|k|v)")


_GENERATES = pattern(r"generation/utils\.py|\.generate\(|:generate\b")


def _generates(evidence: Evidence) -> bool:
    """Whether text is being generated: there each token reads the cache."""
    return any(_GENERATES.search(f"{f.file}:{f.function}: {f.code}") for f in evidence.frames)


def _fault(run: Run, evidence: Evidence) -> Run | None:
    """The frames show that the cache is filled: then it is on, whatever the settings lead one to expect."""
    if run.job.framework.use_cache is True or _generates(evidence) or not any(_FILLS.search(f"{f.file}:{f.function}: {f.code}") for f in evidence.frames):
        return None
    return run.but(framework={"use_cache": True})


RULE = Rule(
    id="decode-cache-in-training",
    tier="copies",
    title="Training fills a key-value cache that nobody reads",
    cleared="No key-value cache is filled in training.",
    prior=-1.5,
    marks=(
        Mark("decode-cache-on", 1.5, "use_cache is on", "transformers modeling code: past_key_values are returned when use_cache is true", when=_on),
        Mark(
            "decode-cache-frame",
            5.2,
            "the cache is being filled in a training step",
            "transformers/cache_utils.py DynamicCache.update (torch.cat of keys and values)",
            pattern=r"cache_utils\.py:(update|lazy_initialization)|past_key_values?\.update|layer_past|torch\.cat\(\s*[(\[]\s*past_(key|value|k|v)",
            on="frame",
            when=lambda _, e: None if in_phase(e, "rollout", "eval") or _generates(e) else "",
        ),
        Mark(
            "decode-cache-told",
            3.5,
            "the cache is spoken of in training",
            "transformers modeling code: past_key_values of all layers are part of the output",
            pattern=r"\bpast_key_values\b[^.?!\n]{0,60}\b(?:GiB|GB|stay|kept|keep|hold|memory|output)|\buse_cache\s*=\s*False\b[^.?!\n]{0,30}\b(?:fits|works|helps|fixes|solves|saves|less)",
            on="line",
            when=lambda _, e: None if in_phase(e, "rollout", "eval") or _generates(e) else "",
        ),
        *share_marks("decode-cache", "decode-cache", some=0.05, most=0.15, weights=(0.5, 1.0), noun="the key-value cache"),
    ),
    fault=_fault,
    remedies=("disable-decode-cache",),
    fires=(
        Example(
            "use_cache in training",
            job=job("EleutherAI/pythia-12b", framework="{use_cache: true}", batch="{micro_batch: 8, seq_len: 2048}"),
            text=trace(
                "transformers/models/gpt_neox/modeling_gpt_neox.py|forward",
                "transformers/cache_utils.py|update|self.keys = torch.cat([self.keys, key_states], dim=-2)",
            )
            + oom("160.00 MiB", allocated=77.5),
        ),
    ),
    quiet=(Example("the cache is off", job=job(framework="{use_cache: false}"), text=oom("512.00 MiB", allocated=76.5)),),
)
