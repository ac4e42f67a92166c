"""One long or unlucky batch."""

from __future__ import annotations

import math
import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, growth, intervals
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import in_phase
from advisor.rules.tensors import WHOLE
from advisor.run import Run
from advisor.units import show

_TRAINED = pattern(
    r"\b(?:after|for) (?:about |some |around |roughly |~ ?|the )?\d[\d,]{0,9}(?:st|nd|rd|th)? (?:epochs?|steps|iterations|hours)\b", re.IGNORECASE
)
LATER = 10  # steps that went through before the failure: the steady state fits


def _applies(_run: Run, evidence: Evidence) -> str | None:
    if in_phase(evidence, "load", "save", "resume", "merge"):
        return "the failure is not in a training step"
    return None


def _later(run: Run, evidence: Evidence) -> str | None:
    """Steps went through before it failed, and nothing grew."""
    if evidence.failure is None:
        return None
    if "seen-later" in evidence.marks and in_phase(evidence, "forward", "loss", "backward", None):
        return None if run.job.batch.packed is True else "many steps went through before the one that failed, as you say"
    step = growth.last_step(evidence)
    if step is None or step < LATER or growth.growing(evidence) or growth.growing_card(evidence) or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    packed = run.job.batch.packed is True
    return None if packed else f"{step:,} steps went through before the one that failed"


_NUMBER = r"\W{0,3}(?:(?:is|of|was|about|length|len|tokens?|dur(?:ation)?)\W{1,2}){0,2}(\d{1,7}(?:[.,]\d{1,4})?)( ?k\b)?"
_TYPICAL = pattern(
    r"\b(?:mean|median|average|avg|p50|p9[059]|"
    r"\d{2}(?:\.\d+)? ?% (?:(?:of|are|is|samples?|cuts?|rows?|them) ){0,3}(?:below|under|within|shorter than|less than|<))" + _NUMBER,
    re.IGNORECASE,
)
_LONGEST = pattern(r"\b(?:max(?:imum)?|longest)" + _NUMBER, re.IGNORECASE)
_MEASURE = pattern(
    r"\d ?(?:s|sec\w*|tok\w*|frames?|k)\b|\b(?:tokens?|lengths?|durations?|frames?|nodes|atoms|residues|points|cuts|samples|words)\b", re.IGNORECASE
)
# "step time: mean 0.3 s, max 2.1 s", "tokens/s: mean 310, max 1280": how fast it goes, not how long the samples are
_OF_SPEED = pattern(r"\b(?:step|iter\w*|batch|forward|backward|data|wait)[ _-]?time|latency|elapsed|throughput|\w ?/ ?s(?:ec)?\b|per second", re.IGNORECASE)
SKEWED = 3.0  # times what is typical


def _spread_told(evidence: Evidence) -> str | None:
    """A line gives a typical and the longest sample of the data, in any one unit (seconds, frames, atoms)."""
    for line in evidence.lines:
        if len(line.text) > 300 or _OF_SPEED.search(line.text) or not _MEASURE.search(line.text) or (longest := _LONGEST.search(line.text)) is None:
            continue
        usual = [_value(m) for m in _TYPICAL.finditer(line.text)]
        if usual and min(usual) > 0 and _value(longest) >= SKEWED * min(usual) and _value(longest) >= 2 * max(usual):
            return f"the longest sample is {_value(longest):,g}, a typical one {min(usual):,g} ({line.where})"
    return None


def _value(match: re.Match[str]) -> float:
    return float(match[1].replace(",", "")) * (1000 if match[2] else 1)


def _lengths(run: Run, evidence: Evidence) -> str | None:
    spread = run.job.batch.lengths
    if spread is None or not spread.p50 or not (spread.max or spread.p99):
        return _spread_told(evidence)
    longest = spread.max or spread.p99 or 0
    return f"the longest sample has {longest:,} tokens, the median {spread.p50:,}" if longest >= 3 * spread.p50 else None


_LOSS = pattern(r"['\"]?\b(?:train_)?loss['\"]?\s?[:=]\s?\d", re.IGNORECASE)
LOGGED = 3  # losses


def _logged(run: Run, evidence: Evidence) -> str | None:
    """Losses were logged without their steps, and the data has samples much longer than the usual one."""
    if evidence.failure is None or _later(run, evidence) is not None or _lengths(run, evidence) is None or growth.growing(evidence):
        return None
    count = sum(_LOSS.search(line.text) is not None for line in evidence.lines)
    return f"{count} losses are logged before it failed, and lengths differ" if count >= LOGGED else None


def _peaks_vary(_run: Run, evidence: Evidence) -> str | None:
    for series in growth.peaks(evidence):
        if max(series.values) > 1.3 * min(series.values) and not series.even:
            return f"the peak differs from step to step ({series.where})"
    return None


def _floor_steady(_run: Run, evidence: Evidence) -> str | None:
    """The level before each step stays while the peaks differ: nothing is kept, batches differ."""
    return growth.steady_floor(evidence)


_BUDGET = pattern(
    r"(?:^|[._-])(batch_(?:size_)?type|max_tokens(?:_per_batch)?|token_budget|batch_max_tokens|frames_per_batch|dynamic_batch\w*)$", re.IGNORECASE
)


def _budget(run: Run, evidence: Evidence) -> str | None:
    """A batch of so many tokens or frames in all: attention grows with the square of the longest sample, which such a budget does not see."""
    if not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    if run.job.batch.token_budget:
        return f"a batch is filled up to {run.job.batch.token_budget:,} tokens, however long the samples are"
    for where, key, value in evidence.seen_keys:
        if _BUDGET.search(key) and str(value).strip("'\"").lower() not in ("sents", "sentence", "sentences", "sample", "samples", "none", "false", "0"):
            return f"a batch is filled by a budget of tokens or frames ({where}: {key}={value})"
    return None


_DIMENSIONS = pattern(
    r"torch\.Size\(\[([\d, ]{1,60})\]\)|\bshape\W{1,4}([\d, ]{1,60})[\])]|"
    r"\b(?:seq_?len(?:gth)?s?|num_tokens|n_tokens|tokens(?: in (?:this |the )?batch)?|max_?len(?:gth)?|longest|frames|n_frames|length)\W{1,3}(\d{1,9})\b",
    re.IGNORECASE,
)
# "max dur in batch 17.3 s", "longest clip: 56.0": what a loop prints of the longest sample of its batch, in whatever unit
_OF_BATCH = pattern(
    r"(?<![A-Za-z])((?:num_tokens_|n_tokens_)?longest(?=\W{1,4}\d)|(?:max(?:imum)?|longest)[ _-]?"
    r"(?:dur(?:ation)?|len(?:gth)?|seq\w*|audio|clip|sample|frames?|tokens?|nodes?|atoms?|residues?|points?))\b"
    r"[^\d\n]{0,15}(\d{1,9}(?:\.\d{1,4})?)(?![\d.]*\s?(?:GiB|GB|MiB|MB|%))",
    re.IGNORECASE,
)
_SAID_BEFORE = pattern(r"\b[A-Za-z]{3,12}[ _][A-Za-z]{3,12}\W{1,3}$")
LONGER = 2.0  # times the longest that went through before


def last_is_longest(_run: Run, evidence: Evidence) -> str | None:
    """Lines of one template show what each step is given, and the last of them is far larger than all before it."""
    if evidence.failure is None or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    rows: dict[str, list[tuple[float, str]]] = {}
    for line in evidence.lines:
        if (named := _OF_BATCH.search(line.text)) is not None:
            rows.setdefault(named[1].lower(), []).append((float(named[2]), line.where))
        elif (m := _DIMENSIONS.search(line.text)) is not None:
            sizes = [int(n) for n in re.findall(r"\d+", m[1] or m[2] or m[3])]
            said = _SAID_BEFORE.search(line.text[max(0, m.start() - 40) : m.start()])  # "features shape: " of a step's line and of a report
            label = said[0] if said is not None else re.sub(r"\d+", "#", line.text[: m.start()])
            rows.setdefault(label, []).append((math.prod(sizes), line.where))
    for shown in rows.values():
        (last, where), before = shown[-1], max((size for size, _ in shown[:-1]), default=0)
        if len(shown) >= 3 and before and last >= LONGER * before:
            return f"the last batch shown is {last / before:.1f} times as large as the largest before it ({where})"
    return None


def _alone_fills(_run: Run, evidence: Evidence) -> str | None:
    """One tensor as large as most of the card, in a run that had gone through before: a sample unlike the others."""
    figures = counters.of(evidence)
    if figures.requested is None or figures.capacity is None or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    trained = any(_TRAINED.search(line.text) for line in evidence.lines) or growth.last_step(evidence) is not None
    if not trained or not WHOLE * figures.capacity <= figures.requested < 100 * figures.capacity:
        return None
    return f"one tensor of {show(figures.requested)} is asked for on a card of {show(figures.capacity)}, after the run had gone well"


def _packed(run: Run, _evidence: Evidence) -> str | None:
    fact = run.facts.get("batch.packed")
    return "every sequence is full" if run.job.batch.packed is True and fact is not None and fact.kind in ("stated", "read") else None


RULE = Rule(
    id="batch-outlier",
    tier="batch",
    title="One batch is much longer than the others",
    cleared="Nothing shows that the failing batch is an exception.",
    prior=-1.2,
    applies=_applies,
    explains=("forward", "loss", "backward"),
    marks=(
        Mark(
            "batch-outlier-later",
            2.5,
            "fails later",
            "a steady footprint fails in the first steps; a padded batch is as long as its longest sample",
            when=_later,
        ),
        Mark("batch-outlier-logged", 1.5, "fails later", "a padded batch is as long as its longest sample", when=_logged),
        Mark("batch-outlier-alone", 2.5, "one tensor fills the card", "what a usual batch makes went through before", when=_alone_fills),
        Mark("batch-outlier-lengths", 1.5, "lengths differ", "the samples' lengths", when=_lengths),
        Mark(
            "batch-outlier-last",
            3.0,
            "the last one is the longest",
            "activations have a row for each token: those of a batch are as large as what it is given",
            when=last_is_longest,
        ),
        Mark(
            "batch-outlier-told",
            2.8,
            "one sample is said to be the one",
            "a padded batch is as long as its longest sample",
            pattern=r"\b(?:always|every time|each time|only)\b[^.?!\n]{0,40}\b(?:same|one|certain|particular|specific) (?:\w+ )?"
            r"(?:sample|batch|example|document|step|file|image)\b|"
            r"\b(?:OOMs?|out of memory)\b (?:comes? |happens? |occurs? )?(?:randomly|at random|sporadically|unpredictably)\b|"
            r"\brandom(?:ly)? (?:OOMs?|out of memory)\b|"
            r"\b(?:avg|average|mean|median|most|typical)\b[^.?!\n]{0,30}\b\d{2,5}\b[^.?!\n]{0,20}\b(?:but|while)\b"
            r"[^.?!\n]{0,12}\b(?:some|a few|one|the longest)\b[^.?!\n]{0,20}\d{4,6}\b|"
            r"\b(?:a few|some|one|single|rare|occasional\w*|very) (?:\w+ )?(?:sequences?|samples?|examples?|documents?|sentences?|clips?)\b[^.?!\n]{0,30}"
            r"\b(?:much|far|way|times|extremely|very|unusually) (?:\w+ )?long(?:er)?\b",
            on="line",
            when=lambda _, e: "" if e.failure is not None and in_phase(e, "forward", "loss", "backward", None) else None,
        ),
        Mark("batch-outlier-peaks", 1.5, "peaks differ", "max_memory_allocated by step", when=_peaks_vary),
        Mark("batch-outlier-floor", 2.0, "steady between steps", "memory_allocated before each step", when=_floor_steady),
        Mark(
            "batch-outlier-budget",
            1.5,
            "a budget of tokens",
            "scores have length² elements for each sample; fairseq, OpenNMT and dynamic samplers",
            when=_budget,
        ),
        Mark("batch-outlier-packed", -2.5, "packed", "packed sequences are all of the same length", when=_packed),
        Mark(
            "batch-outlier-due",
            -1.5,
            "something else is due at that step",
            "the interval of the settings against the step that the log shows last",
            when=lambda _, e: intervals.at(e, "eval", alone=True) or intervals.at(e, "save", alone=True),
        ),
    ),
    remedies=("cap-longest-batch", "smaller-micro-batch", "shorter-sequence", "fused-linear-loss"),
    fires=(
        Example(
            "one tensor as large as the card",
            text="When training for about 10 epochs, this error occurred.\n" + oom("11.47 GiB", allocated=6.0, capacity=11.99),
        ),
        Example(
            "the batch before the failure",
            job=job("openai/whisper-large-v3", batch="{micro_batch: 1}"),
            text="clip 6 input shape=(1, 128, 1400)\nclip 7 input shape=(1, 128, 2210)\nclip 8 input shape=(1, 128, 9000)\n"
            + oom("1.31 GiB", allocated=37.2, capacity=39.39),
        ),
        Example(
            "after many steps",
            job=job("baichuan-inc/Baichuan2-13B-Base", method="{kind: lora, rank: 8}", batch="{micro_batch: 8, packed: false}"),
            text="{'loss': 1.3, 'step': 230}\n 23%|##3  | 233/1000 [10:12<33:34]\n"
            + trace("torch/autograd/graph.py|_engine_run_backward")
            + oom("13.92 GiB", allocated=70.0, free=6.0),
        ),
    ),
    quiet=(
        Example(
            "batches of about one size",
            job=job(batch="{micro_batch: 1, seq_len: 4096}"),
            text="it 1 tokens: 3900\nit 2 tokens: 4096\nit 3 tokens: 4001\n" + oom("512.00 MiB", allocated=76.5),
        ),
        Example("at the first step", job=job(batch="{micro_batch: 8, seq_len: 8192, packed: true}"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
