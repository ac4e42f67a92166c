"""A quantised base is loaded whole on every rank under a sharding strategy that cannot divide it."""

from __future__ import annotations

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.resolving.quant_storage import BYTES, quant_storage
from advisor.rules import counters, observed
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import QUANTISED, loads_weights, sharded, weight_bytes
from advisor.run import Run
from advisor.units import show

NF4_WIDTH = 0.5625  # bytes a weight: 4 bits and one fp32 scale for 64 weights


def _applies(run: Run, _evidence: Evidence) -> str | None:
    if run.job.method.base in (None, "none"):
        return "the base is not quantised"
    return None if sharded(run) or run.job.parallel.strategy is None else f"the strategy {run.job.parallel.strategy} does not divide weights"


def _undividable(run: Run, evidence: Evidence) -> str | None:
    if not (sharded(run) and run.job.method.base in QUANTISED):
        return None
    if run.job.parallel.strategy == "zero3" and loads_weights(evidence):  # modeling_utils.py get_init_context: zero3_init only where not _is_quantized
        return "transformers enters ZeRO-3's sharded loading only for a base that is not quantised: each rank loads it whole"
    storage = quant_storage(run.job, evidence)
    if storage is not None and storage[0] not in (BYTES, "int8"):
        return None
    if run.job.parallel.strategy == "fsdp1":
        return "the quantised weights are stored as bytes: each rank loads them all, and FSDP, which flattens float tensors only, stops there"
    return "the quantised weights are stored as bytes, which this strategy does not divide: each rank keeps them all"


def _whole(run: Run, evidence: Evidence) -> str | None:
    whole, held, ranks = weight_bytes(run, NF4_WIDTH, evidence), counters.of(evidence).allocated, max(1, run.job.parallel.shard or 1)
    if whole is None or held is None or ranks < 2 or not sharded(run) or run.job.method.base not in ("nf4", "fp4"):
        return None
    return f"{show(held)} allocated; the whole 4-bit base is {show(whole)}, a share of it {show(whole / ranks)}" if held > 0.6 * whole else None


def _on_each_card(run: Run, evidence: Evidence) -> str | None:
    """All cards hold about the same, and no less than the whole quantised base."""
    whole, ranks = weight_bytes(run, NF4_WIDTH, evidence), max(1, run.job.parallel.shard or 1)
    used = [d.used_bytes for d in evidence.devices if d.used_bytes]
    if whole is None or ranks < 2 or len(used) < 2 or not sharded(run) or run.job.method.base not in ("nf4", "fp4"):
        return None
    if min(used) < 0.95 * max(used) or min(used) < 0.9 * whole or whole / ranks > 0.6 * min(used):
        return None
    return f"{len(used)} cards hold {show(min(used))} each, as much as the whole 4-bit base of {show(whole)}; a share of it would be {show(whole / ranks)}"


def _while_loading(run: Run, evidence: Evidence) -> str | None:
    """It fails before anything is divided, where a share of the base would fit and the whole one does not."""
    if _undividable(run, evidence) is None or not loads_weights(evidence):
        return None
    whole, capacity, ranks = weight_bytes(run, NF4_WIDTH, evidence), counters.of(evidence).capacity, max(1, run.job.parallel.shard or 1)
    if whole is None or capacity is None or run.job.method.base not in ("nf4", "fp4"):
        return None
    return f"it fails while loading: the whole 4-bit base is {show(whole)} on a card of {show(capacity)}" if whole > 0.9 * capacity > whole / ranks else None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    whole, ranks = weight_bytes(run, NF4_WIDTH), max(1, run.job.parallel.shard or 1)
    if whole is None or ranks < 2 or not sharded(run) or run.job.method.base not in QUANTISED:
        return None
    return run.deviating(extra("weights", bytes=round(whole * (1 - 1 / ranks)), dtype="nf4", cause="quantized-load-not-sharded"))


RULE = Rule(
    id="quantized-load-not-sharded",
    tier="copies",
    title="The quantised base is whole on every rank",
    cleared="The base is divided as it should be.",
    prior=-1.5,
    applies=_applies,
    marks=(
        Mark(
            "quantized-load-storage",
            2.0,
            "stored as bytes",
            "accelerate fsdp_utils leaves frozen Params4bit out of sharding unless quant_storage is a float dtype; DeepSpeed ZeRO-3 partitions float tensors",
            when=_undividable,
        ),
        Mark(
            "quantized-load-told",
            3.0,
            "each card loads the whole base",
            "bitsandbytes quantises on the device, tensor by tensor, before a strategy divides anything",
            when=lambda run, e: observed.whole_on_each(e) if run.job.method.base in QUANTISED and sharded(run) else None,
        ),
        Mark(
            "quantized-load-each-card",
            3.0,
            "each card holds the whole base",
            "nvidia-smi's figures against 4 bits a weight and its scales, undivided",
            when=_on_each_card,
        ),
        Mark("quantized-load-whole", 1.5, "whole base", "4 bits a weight and its scales, undivided", when=_whole),
        Mark(
            "quantized-load-loading",
            2.0,
            "fails while loading",
            "bitsandbytes quantises on the device, before a strategy divides anything",
            when=_while_loading,
        ),
    ),
    fault=_fault,
    remedies=("load-sharded", "fsdp", "correct-launch"),
    fires=(
        Example(
            "QLoRA under ZeRO-3",
            job=job(
                "meta-llama/Llama-3.1-405B",
                method="{kind: lora, base: nf4, rank: 16}",
                parallel="{strategy: zero3, shard: 8}",
                hardware="{gpu: h100-80gb}",
            ),
            text=trace("transformers/modeling_utils.py|_load_pretrained_model") + oom("1.62 GiB", allocated=76.5),
        ),
    ),
    quiet=(Example("a 16-bit base", job=job(method="{kind: lora, base: none}", parallel="{strategy: zero3, shard: 8}"), text=oom("1.62 GiB", allocated=76.5)),),
)
