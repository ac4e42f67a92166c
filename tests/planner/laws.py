"""What must hold of every plan, whoever asks for it: checked on a sample of random jobs in the tests, and on thousands in the bench."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.planner.agreeing import paths
from advisor.planner.constraints import CUTTING, NARROWING, ORDER, RECOMPUTING, REPEATABLE, WEIGHT
from advisor.planner.least import EVERY_PART, FREE
from advisor.planner.measuring import Bench
from advisor.planner.offering import MATTERS, PAYS_LATER
from advisor.planner.searching import cost
from advisor.planning import Constraints
from advisor.report import Plan
from advisor.run import Run, resolve
from advisor.techniques import TIERLESS, NotApplicable, all_techniques

MODELS = (
    "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-14B", "mistralai/Mixtral-8x7B-v0.1", "google/gemma-2-9b",
)  # fmt: skip
CARDS = ("t4-16gb", "rtx4090-24gb", "l40s-48gb", "a100-80gb", "h200-141gb")
LINK_BOUND = frozenset({"offload-optimizer", "offload-parameters", "offload-nvme", "offload-activations"})
NOT_FREE = frozenset(
    {"separate-rollout", "rollout-fraction", "isolate-widening", *NARROWING}
)  # further cards, fewer sequences at once, what TRL decides, or less exact
_KEY = re.compile(r"^\s*(?:--)?([A-Za-z_][\w.]*)\s*[:=](?!=)\s*(.*)$")


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Random jobs of the Hugging Face stack, on one card or a node."""
    ranks = draw(st.sampled_from([1, 2, 8]))
    strategy = "none" if ranks == 1 else draw(st.sampled_from(["ddp", "zero2", "zero3", "fsdp2"]))
    group = {"replicate": ranks} if strategy == "ddp" else {"shard": ranks}
    job: dict[str, Any] = {
        "version": 1, "model": {"name": draw(st.sampled_from(MODELS))}, "method": {"kind": draw(st.sampled_from(["full", "lora"]))}, "objective": "sft",
        "batch": {"micro_batch": draw(st.sampled_from([1, 2, 6, 16])), "seq_len": draw(st.sampled_from([1024, 4096, 16384])),
                  "gradient_accumulation": draw(st.sampled_from([1, 4]))},
        "activations": {"checkpointing": draw(st.sampled_from(["none", "full"]))}, "parallel": {"strategy": strategy, **group},
        "hardware": {"gpu": draw(st.sampled_from(CARDS)), "gpus_per_node": ranks},
        "framework": {"name": draw(st.sampled_from(["trl", "hf-trainer", "axolotl", "llama-factory", "custom"]))},
    }  # fmt: skip
    return resolve(read_job(job))


def needs(run: Run) -> int:
    """Bytes of one card, the allocator's cache left out."""
    ledger = estimate(run)
    return ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")


def samples(run: Run) -> float:
    """Sequences of one optimizer step over all ranks."""
    b, p = run.job.batch, run.job.parallel
    passes = (b.gradient_accumulation or 1) * ((p.microbatches or 1) if (p.pipeline or 1) > 1 else 1)
    return (b.micro_batch or 1) * passes * (p.shard or 1) * (p.replicate or 1) / (p.context or 1)


def hold(start: Run, made: Plan) -> None:
    """Every law at once."""
    if not made.steps:
        return
    names = [step.technique for step in made.steps]
    order = [ORDER[step.tier] for step in made.steps]
    assert in_order(made, start), names
    for before, after in zip(made.steps, made.steps[1:], strict=False):
        assert before.run is not None
        assert after.before_bytes == estimate(before.run).peak().bytes, "each step starts where the one before it ended"
    for step in made.steps:
        assert (
            step.after_bytes is None
            or step.before_bytes is None
            or step.after_bytes <= step.before_bytes * 1.005
            or step.technique in PAYS_LATER | {"drop-fp8", "lora", "dora"}
            or step.tier in ("spare", "hardware")  # another card computes in another dtype
            or made.steps[-1].tier == "hardware"  # and with other kernels: on the card that is left, one sequence may take an unfused one
        ), names
    _one_value_a_key(made)
    last = made.steps[-1].run
    assert last is not None
    if "more-gpus" not in names:
        assert samples(last) == samples(start), "the effective batch is kept"
    if not made.fits:
        return
    assert last.usable is not None
    assert needs(last) <= last.usable[0], "it fits as it says"
    assert made.steps[-1].fits_after
    assert not any(step.fits_after for step in made.steps[:-1]), "and not before"
    if CUTTING & set(names) and last.card is not None and not last.card.link_bytes:
        assert last.job.activations.checkpointing == "full", "nothing is cut up over PCIe before everything is recomputed"
    if made.steps[-1].tier != "hardware":  # another card computes in another dtype
        _no_copy_remains(last, names)
        _no_part_fits(start, made)
    _no_cheaper_single(start, names, max(order))


def in_order(made: Plan, start: Run) -> bool:
    """Tiers in order; what cuts the computation over cards stands after recomputation where a plan has both, and a change behind what opens it."""
    opened = {step.technique for step in made.steps if isinstance(all_techniques()[step.technique].apply(start), NotApplicable)}
    cuts = [n for n, step in enumerate(made.steps) if step.technique in CUTTING]
    recomputes = [n for n, step in enumerate(made.steps) if step.technique in RECOMPUTING]
    order = [ORDER[step.tier] for step in made.steps if not (recomputes and step.technique in CUTTING) and step.technique not in opened]
    return order == sorted(order) and (not cuts or not recomputes or max(recomputes) < min(cuts))


def _one_value_a_key(made: Plan) -> None:
    said: dict[tuple[str, str], str] = {}
    for step in made.steps:
        for layer, lines in step.settings.items():
            for path, line in paths(layer, lines):
                found = _KEY.match(line)
                if found is not None:
                    assert said.setdefault((layer, path), found.group(2)) == found.group(2), (path, said[layer, path], line)


def _bench(start: Run) -> Bench:
    return Bench(start, lambda r: r.usable[0] if r.usable else None, None, Constraints(), budget=10_000)


def _no_part_fits(start: Run, made: Plan) -> None:
    """Of up to six steps no proper subset fits, but for copies that go before something moves to the host."""
    bench, changes = _bench(start), _applied(start, made)
    if changes is None or len(changes) > EVERY_PART:
        return
    tightly = "leaves room for the estimate's error" in made.summary
    for size in range(len(changes)):
        for part in combinations(changes, size):
            left_out = [name for name, _ in changes if name not in dict(part)]
            if LINK_BOUND & set(dict(part)) and any(all_techniques()[name].tier in FREE and name not in NARROWING for name in left_out):
                continue
            measured = bench.measure(part)
            assert measured is None or not bench.fits(measured, tightly=tightly), f"of {dict(changes)} only {dict(part)} is needed"


def _applied(start: Run, made: Plan) -> list[tuple[str, int]] | None:
    """Each step's technique and how often it was applied; ``None`` where a layout was chosen as a whole."""
    found: list[tuple[str, int]] = []
    before = start
    for step in made.steps:
        after, times = before, 0
        while step.run is not None and after.job != step.run.job and times <= REPEATABLE.get(step.technique, 1):
            changed = all_techniques()[step.technique].apply(after)
            if isinstance(changed, NotApplicable):
                return None
            after, times = changed, times + 1
        if step.run is None or after.job != step.run.job:
            return None
        found.append((step.technique, times))
        before = step.run
    return found


def _no_copy_remains(end: Run, names: list[str]) -> None:
    """Where a plan moves something to the host, no copy and no widening that is worth a step is left in the run that it ends with."""
    if not LINK_BOUND & set(names):
        return
    bench = _bench(end)
    base = bench.measure(())
    assert base is not None
    for name, technique in all_techniques().items():
        if technique.tier in ("copies", "fallback") and technique.estimated and name not in TIERLESS:
            single = bench.measure(((name, 1),))
            if single is not None and not single.alters_learning:
                assert base.used_bytes - single.used_bytes <= MATTERS * (base.capacity_bytes or 0) or name in NOT_FREE, name


def _no_cheaper_single(start: Run, chosen: list[str], tier: int) -> None:
    """A plan of several changes, or of a heavy one, is made only where no lighter single change of its tiers would do at less cost."""
    bench = _bench(start)
    base = bench.measure(())
    assert base is not None
    end = bench.measure([(name, chosen.count(name)) for name in dict.fromkeys(chosen)])
    if end is None or any(all_techniques()[n].tier == "hardware" for n in chosen):
        return  # repeated or laid out otherwise: other tests look at those
    heaviest = max(WEIGHT.get(n, 0) for n in chosen)
    for name, technique in all_techniques().items():
        if not technique.estimated or name in TIERLESS or ORDER[technique.tier] > tier or WEIGHT.get(name, 0) > heaviest:
            continue
        single = bench.measure([(name, 1)])
        if single is not None and bench.fits(single) and not (single.alters_learning and not end.alters_learning):
            assert cost(single, base)[:2] >= cost(end, base)[:2] or abs(cost(single, base)[1] - cost(end, base)[1]) <= 0.05 + 1e-9, name
