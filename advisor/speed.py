"""The time of a step: products at the card's rate, bytes at its bandwidth, links and host, each with what hides behind the others.

Kernels of one stream run one after the other, each bound either by arithmetic or by memory, so their times add; launching them from the host
runs beside them, so a micro-batch takes the larger of the two; exchanges between ranks and with the host count with their exposed part.
Efficiencies are in ``knowledge/efficiency.yaml`` with the measured rows behind them. Known error: see ``tests/test_speed.py``.
"""

from __future__ import annotations

from msgspec import Struct

from advisor.job import Job
from advisor.pace.efficiency import Efficiency, efficiency, shared
from advisor.pace.host import host_time
from advisor.pace.links import exchange
from advisor.pace.products import operations, product_bytes
from advisor.pace.shape import Sizes, sizes
from advisor.pace.traffic import fused_throughout, moved
from advisor.run import Run

UNKNOWN_FLOPS = 100e12  # where the card is unknown only ratios are meaningful; these rates are in the proportion of an A100's
UNKNOWN_BANDWIDTH = 600e9
FOUR_BITS = 1.5  # of the FP8 rate where the catalogue has no FP4 rate: NVFP4 steps take 0.73 to 0.78 of FP8's in the measured pairs
SHORT_TOKENS = 1024.0  # below this many tokens a micro-batch utilisation collapses in every source
KBIT = "method.kbit_preparation"
# By how much a setting that is not written could move the time: full checkpointing 1.15 to 1.3, fused kernels 0.9, the fp32 stream of k-bit preparation 1.2
UNWRITTEN = {"activations.checkpointing": 0.25, "activations.kernels": 0.1, KBIT: 0.2}
GROUPED = 0.4  # grouped products of many small experts, against one large product: an assumption that widens the range of every such model
LEAST_BF16 = 80  # compute capability
GALORE_PERIOD = 200.0  # steps between decompositions (GaLore's default)


class StepTime(Struct, frozen=True):
    """Seconds of one optimizer step on the slowest rank, with a range and the parts that make up ``expected``.

    ``relative``: the card is unknown, so that only ratios of two step times mean anything. ``tokens``: of the whole job, padding left out.
    """

    low: float
    expected: float
    high: float
    compute: float
    memory: float
    communication: float
    host: float
    tokens: float
    relative: bool = False
    notes: tuple[str, ...] = ()

    @property
    def seconds_per_token(self) -> float:
        """Seconds a token of the whole job."""
        return self.expected / max(self.tokens, 1.0)

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of the whole job."""
        return self.tokens / max(self.expected, 1e-30)


UNKNOWN = StepTime(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, relative=True, notes=("the model, the micro batch or the sequence length is not known",))


def _as_most_run_it(run: Run) -> Job:
    """The job, without adapter dropout where only a default has it: scripts of a library drop (TRL ModelConfig), a user's own LoraConfig does not (PEFT).

    For memory the masks count all the same: what may be there must fit.
    """
    fact = run.facts.get("method.dropout")
    guessed = fact is not None and fact.kind in ("default", "assumed")
    return run.effective.but(method={"dropout": 0.0}) if guessed and run.effective.method.dropout else run.effective


def step_time(run: Run) -> StepTime:
    """Seconds of one optimizer step; all zero where the model or the batch is not known. Generation by a rollout engine is not counted."""
    job = _as_most_run_it(run)
    s = sizes(run, job)
    if s is None or run.architecture is None:
        return UNKNOWN
    card, e = run.card, efficiency(run.card)
    rate, product_share = _rate(run, job, e)
    known = rate is not None
    bandwidth = ((card.bandwidth_bytes if card is not None else None) or UNKNOWN_BANDWIDTH) * e.memory
    rate = rate or UNKNOWN_FLOPS
    divided = _divided(job)
    ops = operations(s, job, run.architecture.causal)
    traffic = moved(s, job, divided * s.tensor * s.pipeline)
    dense = ops.dense / (rate * e.dense * product_share) + shared().product_traffic * product_bytes(s, job) / bandwidth
    sixteen = _sixteen(run, job.precision.compute) or UNKNOWN_FLOPS
    attention = ops.attention / (sixteen * (e.attention_old if job.activations.attention == "flash-2" else e.attention))
    memory = (traffic.elementwise + traffic.loss + traffic.unpacking + traffic.gathering + _casts(s, job)) / bandwidth
    dense *= 1 + (1 / GROUPED - 1) * s.expert_elements / max(s.block_elements + s.head_elements, 1.0)
    dense += ops.adapters / (sixteen * e.dense * _adapter_share(run, job))
    gpu = dense + attention + memory
    host = host_time(s, job, card, e, gpu, divided)
    busy = max(gpu, host.launching) + shared().expert_seconds * s.expert_layers / s.pipeline
    links = exchange(s, job, card, e, busy)
    step = 0.0 if job.offload.optimizer in ("cpu", "nvme") else traffic.step / bandwidth + _decomposition(s, job, rate)
    bubble = (s.pipeline - 1) / (max(1.0, (job.parallel.microbatches or 1)) * (job.parallel.virtual_stages or 1)) if s.pipeline > 1 else 0.0
    one_pass = busy + links.exposed_per_pass + host.per_pass
    expected = one_pass * s.passes * (1 + bubble) + links.exposed_per_step + step + host.per_step
    scale = s.passes * (1 + bubble)
    width, notes = _range(run, e, s, job, known, slow=links.slow and links.exposed_per_pass + links.exposed_per_step > 0.02 * expected, offloads=host.offloads)
    tokens = s.tokens * (job.parallel.context or 1) * s.passes * s.data_ranks * s.useful
    return StepTime(
        low=expected / (1 + width),
        expected=expected,
        high=expected * (1 + width),
        compute=(dense + attention) * scale,
        memory=memory * scale + step,
        communication=links.exposed_per_pass * scale + links.exposed_per_step,
        host=(busy - gpu + host.per_pass) * scale + host.per_step,
        tokens=tokens,
        relative=not known,
        notes=notes,
    )


def training_seconds(run: Run) -> tuple[float, float, float] | None:
    """Low, expected, high seconds of the whole run, where its tokens (``batch.total_tokens``) and the card are known."""
    total, time = run.job.batch.total_tokens, step_time(run)
    if total is None or time.relative or not time.tokens:
        return None
    steps = total / time.tokens
    return time.low * steps, time.expected * steps, time.high * steps


def _sixteen(run: Run, compute: str | None) -> float | None:
    """Rate of products in 16 bits; in bfloat16 that of fp32 on cards before Ampere: their tensor cores have fp16 alone, and torch only emulates.

    torch cuda/__init__.py ``is_bf16_supported(including_emulation)``; fp32 is an eighth of fp16's rate on both: T4 8.1 / 65, V100 15.7 / 125 TFLOP/s.
    """
    flops = run.card.flops if run.card is not None else {}
    fp16 = flops.get("fp16")
    if compute == "bf16" and fp16 and run.card is not None and run.card.sm is not None and run.card.sm < LEAST_BF16:
        return flops.get("fp32") or fp16 / 8
    return flops.get("bf16") or fp16


def _rate(run: Run, job: Job, e: Efficiency) -> tuple[float | None, float]:
    """Stated rate of dense products in the job's compute dtype, and the share of the usual efficiency that the dtype reaches."""
    compute = job.precision.compute
    sixteen = _sixteen(run, compute)
    flops = run.card.flops if run.card is not None else {}
    if compute in ("fp8", "mxfp8", "nvfp4"):
        eight = flops.get("fp8") or (2 * sixteen if sixteen else 2 * UNKNOWN_FLOPS)
        if compute == "nvfp4":
            return flops.get("fp4") or FOUR_BITS * eight, e.narrow
        return eight, e.narrow
    if compute == "fp32":
        return (flops.get("tf32") or flops.get("fp32") or (sixteen / 8 if sixteen else UNKNOWN_FLOPS / 8)), 0.9
    return sixteen, 1.0


def _adapter_share(run: Run, job: Job) -> float:
    """Narrow products reach half of a square one's rate; in fp32 without autocast they leave the tensor cores (TF32 is off by default)."""
    if job.method.adapter_dtype in ("bf16", "fp16") or job.precision.mixed not in (None, "none"):
        return 0.5
    return 0.5 if run.card is not None and run.card.consumer else 1 / 16  # fp32 over 16-bit rate: A100 19.5 / 312, H100 67 / 989 TFLOP/s


def _divided(job: Job) -> float:
    p = job.parallel
    if p.strategy in ("zero1", "zero2", "zero3", "fsdp1", "fsdp2", "megatron-distributed", "megatron-fsdp"):
        return float(p.shard or 1)
    return 1.0


def _casts(s: Sizes, job: Job) -> float:
    """FP8: inputs, weights and output gradients are read in 16 bits and written in 8, in both layouts."""
    if job.precision.compute not in ("fp8", "mxfp8", "nvfp4"):
        return 0.0
    wide = 2 * s.hidden + 2 * s.query_width + 3 * s.mlp_width
    passes = 4 if fused_throughout(job) else 8  # TransformerEngine casts inside the norm and activation kernels
    return (s.tokens * wide * s.layers * passes + s.block_elements * 8) / s.pipeline / s.tensor


def _decomposition(s: Sizes, job: Job, rate: float) -> float:
    """GaLore: a singular value decomposition of every matrix each period, about 20 m n min(m, n) operations at a few per cent of the rate."""
    if job.method.kind != "galore":
        return 0.0
    return 20 * s.block_elements * s.hidden / (rate * 0.01) / GALORE_PERIOD


def _range(run: Run, e: Efficiency, s: Sizes, job: Job, known: bool, *, slow: bool, offloads: bool) -> tuple[float, tuple[str, ...]]:
    width, notes = e.range, []
    if not known:
        notes.append("the card is not known: only ratios mean something")
    if s.tokens < SHORT_TOKENS:
        width += 0.4
        notes.append("short micro-batches: launching kernels decides")
    if slow:
        width += 0.25
        notes.append("a slow link between ranks decides part of it; its speed is assumed")
    unwritten = [
        path
        for path in UNWRITTEN
        if path in run.facts and run.facts[path].kind in ("default", "assumed") and (path != KBIT or job.method.base not in (None, "none"))
    ]
    if unwritten:
        width += min(0.4, sum(UNWRITTEN[path] for path in unwritten))
        notes.append(f"not written, and it matters: {', '.join(unwritten)}")
    if job.precision.compute in ("fp8", "mxfp8", "nvfp4"):
        width += 0.4
        notes.append("FP8 kernels differ much in speed, and few measured rows have them")
    if s.expert_elements:
        width += 0.6
        notes.append("how evenly tokens fall on experts, and their kernels, decide part of it")
    if offloads:
        width += 0.5
        notes.append("host memory and PCIe decide part of it; their speed is assumed")
    if job.rollout is not None:
        notes.append("generation is not counted")
    return min(width, 2.0), tuple(notes)
