"""Gradients (or flat buffers) are kept for frozen weights because frozen and trainable share a unit."""

from __future__ import annotations

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import ADAPTER, weight_bytes
from advisor.rules.static_state import state_of
from advisor.run import Run
from advisor.units import show


def _applies(run: Run, _evidence: Evidence) -> str | None:
    kind = run.job.method.kind
    return "all weights are trained" if kind == "full" else None


def _shared_unit(run: Run, _evidence: Evidence) -> str | None:
    wrap = run.job.parallel.wrap
    together = wrap is not None and wrap.adapters == "together"
    mixed = run.job.parallel.strategy == "fsdp1" and run.job.method.kind in (*ADAPTER, "freeze") and together
    return "adapters and frozen weights share a unit: its gradient is as large as the whole unit" if mixed else None


_REDUCES = pattern(r"distributed/fsdp/\w+\.py:_(reduce_grad\w*|post_backward_\w+)")


def _larger(run: Run, evidence: Evidence) -> str | None:
    """While a unit's gradient is reduced, one tensor is asked for that is larger than the gradients of all that is trained."""
    failure, figures, state = evidence.failure, counters.of(evidence), state_of(run, evidence)
    if failure is None or figures.requested is None or figures.segment_only or state is None or run.job.method.kind not in ADAPTER:
        return None
    trained = state.parts.get("gradients", 0)
    if not any(_REDUCES.search(f"{f.file}:{f.function}") for f in failure.frames[-3:]) or not trained or figures.requested <= 1.5 * trained:
        return None
    return f"a reduced gradient of {show(figures.requested)} is asked for, where all trained parameters have {show(trained)} on a rank: frozen ones are in it"


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    whole, ranks = weight_bytes(run), max(1, run.job.parallel.shard or 1)
    if whole is None or run.job.parallel.strategy != "fsdp1" or run.job.method.kind not in (*ADAPTER, "freeze"):
        return None
    return run.deviating(extra("gradients", bytes=whole // ranks, phases=("backward", "step"), cause="frozen-gradients"))


RULE = Rule(
    id="frozen-gradients",
    tier="copies",
    title="Frozen weights get gradients because they share a unit with trained ones",
    cleared="No unit mixes frozen and trained weights.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark(
            "frozen-gradients-warning",
            5.0,
            "a unit has both frozen and trained parameters",
            "torch/distributed/fsdp/_wrap_utils.py warns for each such unit",
            pattern=(
                r"has both parameters with requires_grad=True and False|gradient memory usage will be higher than expected|"
                r"Must flatten tensors with uniform `?requires_grad`?"
            ),
        ),
        Mark(
            "frozen-gradients-larger",
            3.5,
            "more than all trained gradients",
            "torch/distributed/fsdp/_runtime_utils.py _reduce_grad: one gradient for a flat parameter, whatever of it is trained",
            when=_larger,
        ),
        Mark(
            "frozen-gradients-told",
            3.0,
            "frozen weights have gradients, as is written",
            "autograd makes none for a leaf without requires_grad; a flat parameter of both has one for all its elements",
            pattern=r"\b(?:grad(?:ient)?s?|\.grad)\b[^.?!\n]{0,60}\b(?:for|of|on|in) (?:\w+ ){0,3}(?:frozen|freez\w+|non-?trainable)\b|"
            r"\b(?:frozen|freez\w+|non-?trainable)\b[^.?!\n]{0,60}\b(?:have|has|get|gets|hold|holds|allocat\w+|keep\w*|still)\b[^.?!\n]{0,30}\bgrad(?:ient)?s?\b",
            on="line",
        ),
        Mark("frozen-gradients-unit", 1.5, "shared unit", "FSDP1 flattens a unit's parameters into one, with one gradient", when=_shared_unit),
    ),
    fault=_fault,
    remedies=("wrap-frozen-apart", "fsdp"),
    fires=(
        Example(
            "a reduced gradient larger than all that is trained",
            job=job(
                "Qwen/Qwen2.5-32B",
                method="{kind: lora, rank: 8}",
                precision="{weights: bf16}",
                parallel="{strategy: fsdp1, shard: 8}",
                batch="{micro_batch: 1, seq_len: 2048}",
                activations="{checkpointing: full}",
            ),
            text=trace("torch/distributed/fsdp/_runtime_utils.py|_reduce_grad|new_sharded_grad = torch.empty_like(chunks[0])")
            + oom("232.00 MiB", allocated=77.9),
        ),
        Example(
            "LoRA under FSDP1",
            job=job(method="{kind: lora, rank: 16}", parallel="{strategy: fsdp1, shard: 4}"),
            text="UserWarning: FullyShardedDataParallel has both parameters with requires_grad=True and False. "
            "We do not recommend wrapping such modules since the gradient memory usage will be higher than expected "
            "(8030261248 numel instead of 41943040 numel before sharding via reduce-scatter).\n" + oom("1.96 GiB", allocated=78.0),
        ),
    ),
    quiet=(Example("full training", job=job(method="{kind: full}"), text=oom("512.00 MiB", allocated=76.5)),),
)
