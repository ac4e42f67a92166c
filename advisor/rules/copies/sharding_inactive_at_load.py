"""Every rank loads the full model because the sharded context is not active yet."""

from __future__ import annotations

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.rules import counters, observed
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import QUANTISED, builds_second, gpus, in_phase, loads_weights, moved_whole, names_more_gpus, sharded, weight_bytes, wraps
from advisor.run import Run
from advisor.units import show


def _applies(run: Run, _evidence: Evidence) -> str | None:
    strategy = run.job.parallel.strategy
    if strategy is not None and not sharded(run):
        return f"the strategy {strategy} does not divide the weights"
    return None


def _whole_while_loading(run: Run, evidence: Evidence) -> str | None:
    """While loading, a rank holds more than its share: of a model of W bytes over N ranks at most W/N and one tensor."""
    whole, held, ranks = weight_bytes(run, None, evidence), counters.of(evidence).allocated, gpus(run)
    if whole is None or held is None or ranks < 2 or not sharded(run) or not loads_weights(evidence) or builds_second(evidence):
        return None
    return f"{show(held)} allocated while loading, where a share of 1/{ranks} of the weights is {show(whole / ranks)}" if held > 1.6 * whole / ranks else None


def _loading(run: Run, evidence: Evidence) -> str | None:
    return "the failure comes while the weights are loaded, under a strategy that should divide them" if sharded(run) and loads_weights(evidence) else None


def _only_whole(run: Run, evidence: Evidence) -> str | None:
    """It fails while loading, and only the whole model could: it is larger than the card, and a rank's share leaves half of it free."""
    whole, ranks = weight_bytes(run, None, evidence), gpus(run)
    capacity = counters.of(evidence).capacity or (run.usable[0] if run.usable else None)
    if whole is None or capacity is None or ranks < 2 or not sharded(run) or not loads_weights(evidence) or run.job.method.base in QUANTISED:
        return None
    if whole < 0.95 * capacity or whole / ranks > 0.5 * capacity:
        return None
    return f"a share of 1/{ranks} of the weights is {show(whole / ranks)} on a card of {show(capacity)}; only the whole {show(whole)} fills it while loading"


def _one_process(run: Run, evidence: Evidence) -> str | None:
    """A sharding strategy over one rank divides by one: a wrong launch where more GPUs were meant, else just one GPU."""
    named = names_more_gpus(run, evidence)
    if not sharded(run) or named is None:
        return None
    for where, key, value in evidence.seen_keys:
        if key.rpartition(".")[2] == "num_processes" and str(value).strip() == "1":
            return f"{where}: the launch starts one process, so {run.job.parallel.strategy} divides by one, though more GPUs are named ({named})"
    return None


def _zero_init_seen(run: Run, _evidence: Evidence) -> str | None:
    return "" if sharded(run) else None


def _host(run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    loading = failure is not None and failure.kind == "host-memory" and in_phase(evidence, "load")
    return "each rank builds the whole model in host memory before it is divided" if loading and sharded(run) else None


def _fault(run: Run, evidence: Evidence) -> Run | None:
    whole, ranks = weight_bytes(run, 0.53 if run.job.method.base in ("nf4", "fp4") else None), max(1, run.job.parallel.shard or 1)
    if builds_second(evidence):
        return None  # what is held is of two models
    if whole is None or not sharded(run) or ranks < 2:
        return None
    return run.deviating(
        extra("weights", bytes=round(whole * (1 - 1 / ranks)), dtype=run.job.precision.weights, phases=("load",), cause="sharding-inactive-at-load")
    )


def _wrapping(_run: Run, evidence: Evidence) -> str | None:
    if moved_whole(evidence):
        return "the script moves the whole model to the device itself"
    return "the model had been loaded, and it is being divided: what is on the card was put there in between" if wraps(evidence) else None


RULE = Rule(
    id="sharding-inactive-at-load",
    tier="copies",
    title="Every rank loads the whole model: the sharded context is not active while loading",
    cleared="Loading holds no more than a rank's share.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark("sharding-inactive-wrapping", -4.5, "while it is divided", "the failing frames", when=_wrapping),
        Mark("sharding-inactive-loading", 1.5, "fails while loading", "from_pretrained runs before FSDP or ZeRO wraps the model", when=_loading),
        Mark(
            "sharding-inactive-whole",
            3.0,
            "more than a share",
            "W / N is all that a rank needs while loading under a sharded context",
            when=_whole_while_loading,
        ),
        Mark("sharding-inactive-only-whole", 2.5, "only the whole model fails", "W / N is all that a rank needs while loading", when=_only_whole),
        Mark(
            "sharding-inactive-told",
            2.0,
            "each card loads the whole model",
            "a sharded context makes each rank materialise its share only",
            when=lambda run, e: observed.whole_on_each(e) if sharded(run) else None,
        ),
        Mark(
            "sharding-inactive-one-process",
            3.0,
            "one process",
            "accelerate launch: num_processes sets the world; ZeRO and FSDP divide by it",
            when=_one_process,
        ),
        Mark(
            "sharding-inactive-world",
            2.0,
            "the process group has one rank",
            "torchrun and accelerate export WORLD_SIZE to each worker",
            pattern=r"\bWORLD_SIZE\s*[=:]\s*1\b",
            when=lambda run, evidence: "" if sharded(run) and names_more_gpus(run, evidence) else None,
        ),
        Mark(
            "sharding-inactive-loader",
            1.5,
            "the loader places whole tensors on the device",
            "transformers modeling_utils._load_state_dict_into_meta_model places each parameter at param_device unless is_fsdp_enabled()",
            pattern=r"modeling_utils\.py:(_load_state_dict_into_meta_model|_load_pretrained_model|from_pretrained)|core_model_loading\.py",
            on="frame",
            when=lambda run, _: "" if sharded(run) else None,
        ),
        Mark(
            "sharding-inactive-engine-moves",
            4.0,
            "DeepSpeed moves the whole module although stage 3 is set: it was not built under zero.Init",
            "DeepSpeed runtime/engine.py _configure_distributed_model: module.to(device) unless the parameters are partitioned already",
            pattern=r"_configure_distributed_model: .*module\.to\(",
            on="frame",
            when=lambda run, _: "" if run.job.parallel.strategy == "zero3" else None,
        ),
        Mark(
            "sharding-inactive-partitions",
            -4.0,
            "each parameter is divided as its module is built",
            "DeepSpeed runtime/zero/partition_parameters.py: under zero.Init every module's __init__ is wrapped (_post_init_method, param.partition)",
            pattern=r"partition_parameters\.py:(?:_post_init_method|_zero_init_param|_partition_param)\b",
            on="frame",
        ),
        Mark(
            "sharding-inactive-zero-init",
            -3.0,
            "ZeRO-3 was active while loading",
            "transformers modeling_utils logs it when is_deepspeed_zero3_enabled()",
            pattern=r"Detected DeepSpeed ZeRO-3: activating zero\.init",
            when=_zero_init_seen,
        ),
        Mark(
            "sharding-inactive-host", 2.5, "whole model in host memory", "FSDP without cpu_ram_efficient_loading materialises on each rank's host", when=_host
        ),
        Mark(
            "sharding-inactive-quantised",
            -1.5,
            "a quantised base",
            "bitsandbytes weights are placed on each rank's device by design",
            when=lambda run, _: "the base is quantised, which some strategies cannot divide" if run.job.method.base in QUANTISED else None,
        ),
    ),
    fault=_fault,
    remedies=("load-sharded", "correct-launch", "fsdp"),
    fires=(
        Example(
            "FSDP, whole tensors on the device",
            job=job(
                "Qwen/Qwen2.5-72B-Instruct",
                precision="{weights: bf16}",
                parallel="{strategy: fsdp2, shard: 16}",
                hardware="{gpu: a100-80gb, gpus_per_node: 8, nodes: 2}",
            ),
            text=trace(
                "transformers/modeling_utils.py|from_pretrained",
                "transformers/modeling_utils.py|_load_state_dict_into_meta_model|param = param[...].to(param_device)",
            )
            + oom("462.00 MiB", allocated=77.9),
        ),
    ),
    quiet=(
        Example(
            "it loads, and fails in the backward pass",
            job=job(
                "Qwen/Qwen2.5-72B-Instruct",
                precision="{weights: bf16}",
                parallel="{strategy: fsdp2, shard: 16}",
                hardware="{gpu: a100-80gb, gpus_per_node: 8, nodes: 2}",
            ),
            text=trace("torch/autograd/graph.py|_engine_run_backward") + oom("462.00 MiB", allocated=77.9),
        ),
        Example(
            "a full card in the step",
            job=job(parallel="{strategy: fsdp2, shard: 8}", precision="{weights: bf16}", batch="{micro_batch: 8, seq_len: 8192}"),
            text=trace("torch/optim/adamw.py|_multi_tensor_adamw|exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)") + oom("68.00 MiB", allocated=77.0),
        ),
    ),
)
