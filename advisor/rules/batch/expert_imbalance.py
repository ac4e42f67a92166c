"""One expert or rank receives most tokens."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, observed, told_ranks
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.run import Run


def _applies(run: Run, _evidence: Evidence) -> str | None:
    shape = run.architecture
    if shape is not None and not any(b.experts for b in shape.blocks):
        return "the model has no experts"
    return None


def _spread(_run: Run, evidence: Evidence) -> str | None:
    """Only some of several ranks failed, with more allocated than the others report."""
    failed = {f.rank for f in evidence.failures if f.rank is not None and not f.consequence}
    peaks = {s.rank: s.peak_allocated_bytes or s.allocated_bytes for s in evidence.samples if s.rank is not None}
    others = [v for r, v in peaks.items() if v and r not in failed]
    held = counters.of(evidence).allocated
    if not failed or held is None or len(others) < 2:
        return None
    return "the failing rank holds far more than the others" if held > 1.25 * max(others) else None


_COUNTS = pattern(r"\brank\s?:?\s?(\d{1,5})\b(.{0,120})", re.IGNORECASE)
_NUMBER = pattern(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+|\d{1,12})(?![\d.,]*\d)(?!\s?(?:GiB|GB|MiB|MB|%))")
UNEVEN = 4.0  # times the median rank's tokens


def _tokens(_run: Run, evidence: Evidence) -> str | None:
    """Lines of several ranks print how many tokens each got, and one rank got several times what the others did."""
    columns: dict[tuple[str, int], dict[int, int]] = {}
    for line in evidence.lines:
        found = _COUNTS.search(line.text)
        if found is None or "token" not in line.text.lower():
            continue
        template = re.sub(r"[\d.,]+", "#", line.text)
        for column, number in enumerate(_NUMBER.findall(found.group(2))):
            columns.setdefault((template, column), {})[int(found.group(1))] = int(number.replace(",", ""))
    for counts in columns.values():
        ordered = sorted(counts.values())
        median = ordered[(len(ordered) - 1) // 2]
        if len(counts) >= 3 and ordered[-1] >= UNEVEN * max(median, 1) and ordered[-1] > 1000:
            rank = max(counts, key=lambda r: counts[r])
            return f"rank {rank} got {ordered[-1]:,} tokens where the rank in the middle got {median:,}"
    return None


_PER_EXPERT = r"(?:(?:num_|n_)?tokens_per_(?:local_)?experts?|exp(?:ert)?_counts?|expert_(?:load|frequency)|splits_per_expert)"
_MOST_AND_MEAN = pattern(
    rf"\b(?:{_PER_EXPERT}|tokens (?:per|for each) expert)\b.{{0,40}}?\bmax\b\D{{0,4}}(\d{{1,12}})\b.{{0,20}}?\b(?:mean|avg|average)\b\D{{0,4}}(\d{{1,12}})\b",
    re.IGNORECASE,
)


def _busiest(_run: Run, evidence: Evidence) -> str | None:
    """A line prints the busiest expert's tokens beside the mean of all experts."""
    for line in evidence.lines:
        if len(line.text) <= 300 and (found := _MOST_AND_MEAN.search(line.text)) is not None:
            most, mean = int(found[1]), int(found[2])
            if most >= UNEVEN * max(mean, 1) and most > 1000:
                return f"the busiest expert got {most:,} tokens where the mean is {mean:,} ({line.where})"
    return None


def _parallel(run: Run, _evidence: Evidence) -> str | None:
    expert = run.job.parallel.expert or 1
    return f"experts are divided over {expert} ranks: a rank's share of the tokens depends on the router" if expert > 1 else None


RULE = Rule(
    id="expert-imbalance",
    tier="batch",
    title="One expert or rank receives most of the tokens",
    cleared="The model has no experts, or nothing shows that they are unevenly used.",
    prior=-1.5,
    applies=_applies,
    explains=("forward", "backward"),
    marks=(
        Mark(
            "expert-imbalance-told",
            3.5,
            "one receives most tokens",
            "a router without balance sends any share of the tokens to one expert; its rank holds their activations (GShard, arXiv 2006.16668, section 2.2)",
            when=lambda _, e: observed.uneven_tokens(e),
        ),
        Mark(
            "expert-imbalance-alone",
            2.0,
            "one rank alone",
            "ranks of an expert group hold the same weights; what differs is how many tokens the router sends them",
            when=lambda _, e: told_ranks.one_of_experts(e),
        ),
        Mark(
            "expert-imbalance-unbalanced",
            1.5,
            "nothing balances the router, and no token is dropped",
            "Megatron-LM arguments.py --moe-router-load-balancing-type none; Hugging Face router_aux_loss_coef 0; a capacity factor of none",
            pattern=r"moe[-_]router[-_]load[-_]balancing[-_]type[=: ]+['\"]?none\b|router_aux_loss_coef[=: ]+0(?:\.0)?\b|\bdropless\b",
        ),
        Mark(
            "expert-imbalance-dispatch",
            3.0,
            "tokens are being sent to experts",
            "Megatron core/transformer/moe/token_dispatcher.py, grouped_gemm; DeepSpeed sharded_moe; tutel, megablocks",
            pattern=r"token_dispatcher\.py|permute\b|grouped_gemm|\bgmm\(|experts\.py|sharded_moe\.py|all_to_all|megablocks|deep_ep",
            on="frame",
        ),
        Mark(
            "expert-imbalance-parallel",
            0.7,
            "divided experts",
            "Megatron --expert-model-parallel-size without --moe-expert-capacity-factor drops no token",
            when=_parallel,
        ),
        Mark(
            "expert-imbalance-padded",
            3.5,
            "every expert's buffer is as long as the busiest expert's",
            "DeepSpeed moe/sharded_moe.py top1gating without drop_tokens: new_capacity = torch.max(exp_counts); padded grouped products alike",
            pattern=rf"\bmax\([^()]{{0,12}}\b{_PER_EXPERT}\b|\b{_PER_EXPERT}\.(?:a?max)\(",
            on="frame",
        ),
        Mark(
            "expert-imbalance-counts",
            3.0,
            "one expert's tokens against the mean",
            "a balanced router gives each expert the mean (Switch Transformer, arXiv 2101.03961, section 2.2)",
            when=_busiest,
        ),
        Mark("expert-imbalance-tokens", 4.0, "tokens unevenly spread", "counts of routed tokens by rank", when=_tokens),
        Mark("expert-imbalance-spread", 2.5, "one rank holds more", "counters of the ranks", when=_spread),
    ),
    remedies=("balance-experts", "expert-parallel", "smaller-micro-batch"),
    fires=(
        Example(
            "the dispatcher's permutation",
            job=job(
                "allenai/OLMoE-1B-7B-0924",
                parallel="{strategy: megatron, expert: 8, shard: 8}",
                framework="{name: megatron-lm}",
                hardware="{gpu: h100-80gb, gpus_per_node: 8}",
            ),
            text=trace("megatron/core/transformer/moe/token_dispatcher.py|token_permutation|permuted = permute(hidden_states, self.routing_map)")
            + oom("6.10 GiB", allocated=73.0, free=3.0),
        ),
    ),
    quiet=(Example("a dense model", job=job(), text=oom("512.00 MiB", allocated=76.5)),),
)
