"""As it trains now, the job does not fit these cards, however its state is divided over them."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import counters, observed
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import (
    ADAPTER,
    DIVIDES_OPTIMIZER,
    DIVIDES_WEIGHTS,
    QUANTISED,
    gpus,
    gpus_known,
    in_phase,
    loads_weights,
    moves_module,
    names_more_gpus,
    parameters,
)
from advisor.run import Run
from advisor.units import show

FULL_BYTES = {"adamw": 16, "adamw-8bit": 10, "paged-adamw": 8, "paged-adamw-8bit": 8, "adafactor": 8.1, "lion": 12, "sgd": 8, "sgd-momentum": 12, "muon": 12}
BASE_BYTES = {"nf4": 0.56, "fp4": 0.56, "int8": 1.03, "gptq-int4": 0.53, "awq-int4": 0.53, "fp8": 1.0, "mxfp4": 0.53}


def least_state(run: Run, evidence: Evidence) -> int | None:
    """Weights, gradients and optimizer state of one GPU if everything were divided over all of them, bytes.

    16 bytes a trained parameter (bf16 weight 2 + gradient 2 + fp32 master 4 + moments 8, ZeRO section 3), the base's layout for a frozen one.
    """
    count = parameters(run, evidence)
    if count is None:
        return None
    if loads_weights(evidence) or moves_module(evidence):  # gradients and optimizer state do not exist yet
        return round(count * BASE_BYTES.get(run.job.method.base or "none", 2.0) / gpus(run))
    method, optimizer = run.job.method, run.job.optimizer.name or "adamw"
    if method.kind in ADAPTER:
        width = BASE_BYTES.get(method.base or "none", 4.0 if run.job.precision.weights == "fp32" else 2.0)
    else:
        width = float(FULL_BYTES.get(optimizer, 16))
        if run.job.precision.weights in ("bf16", "fp16") and run.job.precision.master == "none":
            width = width / 2
        if run.job.offload.optimizer in ("cpu", "nvme"):
            width = min(width, 4.0)
    return round(count * width / gpus(run))


_AFTERWARDS = ("save", "merge", "eval", "resume")  # moments of their own: training's state fitted, or is not there


def _never(run: Run, evidence: Evidence) -> str | None:
    if in_phase(evidence, *_AFTERWARDS):
        return None
    least, capacity = least_state(run, evidence), counters.of(evidence).capacity or (run.usable[0] if run.usable else None)
    if least is None or capacity is None or least < 0.95 * capacity or not gpus_known(run):
        return None
    if gpus(run) == 1:
        return f"what the one GPU has to hold is {show(least)} on a card of {show(capacity)}"
    return f"even divided over all {gpus(run)} GPUs, what each has to hold then is {show(least)} on a card of {show(capacity)}"


def _everything_done(run: Run, evidence: Evidence) -> str | None:
    """What costs least is in place: state divided, checkpointing on, one sequence."""
    job = run.job
    divided = gpus(run) < 2 or job.parallel.strategy in DIVIDES_WEIGHTS or (job.parallel.tensor or 1) > 1
    small = (job.batch.micro_batch or 8) == 1 and job.activations.checkpointing == "full"
    return (
        "state is divided, the micro batch is 1 and checkpointing is on already"
        if divided and small and (least_state(run, evidence) or 0) > 0.6 * (counters.of(evidence).capacity or 1 << 62)
        else None
    )


def _room(run: Run, evidence: Evidence) -> str | None:
    least, capacity = least_state(run, evidence), counters.of(evidence).capacity or (run.usable[0] if run.usable else None)
    fits = least is not None and capacity is not None and least < 0.6 * capacity
    return f"divided over all GPUs the state is {show(least or 0)}, which leaves room on a card of {show(capacity or 0)}" if fits else None


def _one_rank(run: Run, evidence: Evidence) -> str | None:
    """A strategy that divides state over one rank where more GPUs are named: the launch is wrong before the cards are too few."""
    alone = run.job.parallel.strategy in DIVIDES_WEIGHTS and gpus(run) == 1 and names_more_gpus(run, evidence) is not None
    return "the strategy divides over one rank: the launch comes first" if alone else None


def _leaner(run: Run, evidence: Evidence) -> str | None:
    """Dividing the state is not yet done, and would be enough."""
    undone = (
        run.job.parallel.strategy not in DIVIDES_OPTIMIZER and gpus(run) > 1 and (run.job.parallel.tensor or 1) == 1 and run.job.method.base not in QUANTISED
    )
    return "the state is not divided yet" if undone and _never(run, evidence) is None else None


RULE = Rule(
    id="capacity",
    tier="hardware",
    title="As it trains now, the job is too large for these cards, however it is divided",
    cleared="The job can be made to fit these cards.",
    prior=-1.5,
    needs=("model.name", "parallel.strategy"),
    marks=(
        Mark(
            "capacity-never",
            4.5,
            "never fits",
            "ZeRO (arXiv 1910.02054) section 3: bytes a parameter, divided by all ranks",
            when=_never,
            rests_on=("method.kind",),
        ),
        Mark("capacity-done", 1.0, "all done", "the configuration", when=_everything_done),
        Mark("capacity-worked", -4.0, "it fitted before", "the cards are the same", when=lambda _, e: observed.worked_before(e)),
        Mark("capacity-room", -2.5, "room", "the same sum", when=_room),
        Mark("capacity-one-rank", -2.5, "one rank", "the configuration", when=_one_rank),
        Mark("capacity-undivided", -1.0, "not divided", "the configuration", when=_leaner),
    ),
    remedies=("more-gpus", "qlora", "lora", "offload-optimizer", "larger-gpu", "offload-parameters", "smaller-model"),
    fires=(
        Example("told in words", text="I want full fine-tuning of a 20B model, but on a single 48GB card I always get OOM, whatever the batch size.\n"),
        Example("told in Chinese", text="全参数微调 13B 的模型，序列长度为 1024，单卡 40G 显存，batch size 设为 1 还是 OOM。\n"),
        Example(
            "full training of 70B on sixteen 40 GB cards",
            job=job(
                "meta-llama/Llama-2-70b-hf",
                method="{kind: full}",
                precision="{weights: bf16, compute: bf16, mixed: deepspeed, master: fp32}",
                parallel="{strategy: zero3, shard: 16}",
                batch="{micro_batch: 1, seq_len: 1024}",
                activations="{checkpointing: full}",
                hardware="{gpu: a100-40gb, gpus_per_node: 8, nodes: 2}",
            ),
            text=trace("deepspeed/runtime/zero/stage3.py|initialize_optimizer_states") + oom("3.73 GiB", allocated=35.8, capacity=39.42, free=2.4),
        ),
    ),
    quiet=(
        Example(
            "two small cards train it, and fail while saving",
            text="Full fine-tuning of a 13B model on 2 GPUs with 40GB works for all epochs. When the model is saved at the end it is OOM.\n",
        ),
        Example(
            "a small model",
            job=job("Qwen/Qwen2.5-0.5B", batch="{micro_batch: 64, seq_len: 4096}", hardware="{gpu: a100-80gb}"),
            text=oom("37.10 GiB", allocated=60.0, free=18.0),
        ),
    ),
)
