"""The whole model is moved to the device before it is divided: early ``.to``, full-precision evaluation flags."""

from __future__ import annotations

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.rules import counters
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import gpus, in_phase, sharded, weight_bytes, wraps
from advisor.run import Run
from advisor.units import show


def _applies(run: Run, _evidence: Evidence) -> str | None:
    strategy = run.job.parallel.strategy
    return f"the strategy {strategy} does not divide the weights" if strategy is not None and not sharded(run) else None


def _stated(run: Run, _evidence: Evidence) -> str | None:
    load = run.job.load
    return "the job moves the whole model before it is divided" if load is not None and load.move_before_sharding and sharded(run) else None


def _full_eval(run: Run, evidence: Evidence) -> str | None:
    for where, key, value in evidence.seen_keys:
        if key.rpartition(".")[2] in ("bf16_full_eval", "fp16_full_eval") and str(value).lower() == "true" and sharded(run):
            return f"{where}: {key} makes the trainer move the whole model to the device for evaluation"
    return None


def _at_wrap(run: Run, evidence: Evidence) -> str | None:
    """While it is divided the card holds the whole model: FSDP moves and divides unit by unit where the model is on the host or meta device."""
    whole, held, ranks = weight_bytes(run, 2.0, evidence), counters.of(evidence).allocated, gpus(run)
    if whole is None or held is None or ranks < 2 or not sharded(run) or not wraps(evidence) or held < 0.9 * whole:
        return None
    return f"{show(held)} are on the card while the model is being divided over {ranks} ranks; whole it is {show(whole)} in 16 bit"


FILLED = 0.9  # of the card, as everywhere (situation.nearly_full): a rank that takes unit by unit has its share and one unit by then


def _full_at_wrap(run: Run, evidence: Evidence) -> str | None:
    """The same of a model that is not known: it fails while it is divided, before a step, with the card full of it."""
    figures = counters.of(evidence)
    if not sharded(run) or not wraps(evidence) or weight_bytes(run, 2.0, evidence) is not None or figures.allocated is None or figures.capacity is None:
        return None
    return f"{show(figures.allocated)} are on the card while the model is being divided" if figures.allocated >= FILLED * figures.capacity else None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    whole, ranks = weight_bytes(run), max(1, run.job.parallel.shard or 1)
    if whole is None or not sharded(run) or ranks < 2:
        return None
    return run.deviating(
        extra("weights", bytes=round(whole * (1 - 1 / ranks)), dtype=run.job.precision.weights, phases=("load", "eval"), cause="moved-before-sharding")
    )


RULE = Rule(
    id="moved-before-sharding",
    tier="copies",
    title="The whole model is moved to the device before it is divided",
    cleared="Nothing moves the whole model to the device before it is divided.",
    prior=-1.5,
    applies=_applies,
    needs=("parallel.strategy",),
    marks=(
        Mark("moved-before-sharding-wrap", 3.0, "whole while divided", "torch distributed/fsdp: a unit at a time is materialised and divided", when=_at_wrap),
        Mark(
            "moved-before-sharding-full", 2.5, "full while divided", "torch distributed/fsdp: a unit at a time is materialised and divided", when=_full_at_wrap
        ),
        Mark("moved-before-sharding-stated", 3.0, "an early move", "FSDP and ZeRO-3 move each unit themselves", when=_stated),
        Mark(
            "moved-before-sharding-full-eval",
            2.5,
            "full evaluation flags",
            "transformers Trainer.evaluation_loop: model.to(dtype=..., device=args.device)",
            when=_full_eval,
        ),
        Mark(
            "moved-before-sharding-frame",
            3.5,
            "a module is moved as a whole",
            "torch/nn/modules/module.py to/cuda/_apply; transformers Trainer._move_model_to_device",
            pattern=r"nn/modules/module\.py:(to|cuda|_apply|convert)\b|trainer\.py:_move_model_to_device",
            on="frame",
            when=lambda run, e: "" if sharded(run) and in_phase(e, "load", "eval", None) else None,
        ),
        Mark(
            "moved-before-sharding-flat",
            3.5,
            "a unit's whole parameters are on the device as FSDP flattens or moves them",
            "torch fsdp/_init_utils.py _move_states_to_device, _flat_param.py flatten_tensors: torch.cat of a unit's parameters, before handle.shard()",
            pattern=r"_init_utils\.py:_move_(?:states|module)_to_device\b|_flat_param\.py:flatten_tensors\b",
            on="frame",
        ),
        Mark(
            "moved-before-sharding-code",
            2.5,
            "the script moves the whole model to the device before it divides it",
            "torch.nn.Module.to above FSDP(...), fully_shard, deepspeed.initialize or accelerator.prepare",
            pattern=r"^code\.(moves-before-sharding)=",
            on="key",
            when=lambda run, e: "" if sharded(run) and in_phase(e, "load", None) else None,
        ),
    ),
    fault=_fault,
    remedies=("shard-before-move", "load-sharded"),
    fires=(
        Example(
            "cuda() before FSDP",
            job=job("meta-llama/Llama-2-70b-hf", precision="{weights: bf16}", parallel="{strategy: fsdp1, shard: 8}", hardware="{gpu: a100-80gb}"),
            text=trace(
                "torch/nn/modules/module.py|cuda|return self._apply(lambda t: t.cuda(device))", "torch/nn/modules/module.py|_apply|param_applied = fn(param)"
            )
            + oom("448.00 MiB", allocated=78.1),
        ),
    ),
    quiet=(
        Example(
            "not sharded",
            job=job(precision="{weights: bf16}", parallel="{strategy: none}"),
            text=trace("torch/nn/modules/module.py|cuda|return self._apply(lambda t: t.cuda(device))") + oom("448.00 MiB", allocated=78.1),
        ),
    ),
)
