"""Optimizer state is the peak and is wider than needed."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, optimizer_frames, snapshots, static_state
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import DIVIDES_OPTIMIZER, gpus, gpus_known, in_phase, nearly_full, not_one_sample, smallest_batch
from advisor.run import Run


def _stepping(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes in the optimizer's step" if in_phase(evidence, "step") else None


def _least(run: Run, evidence: Evidence) -> str | None:
    """Full training of a model of unknown size, one recomputed sequence, and the card is full all the same: what is left is state."""
    unknown = run.job.method.kind == "full" and ledger_of(run) is None
    full = unknown and nearly_full(evidence) and in_phase(evidence, "forward", "backward", None)
    return smallest_batch(run) if full and run.job.offload.optimizer in (None, "none") else None


_FP32_STATE = pattern(r"exp_avg(?:_sq)?\b.{0,40}torch\.float32|<class 'torch\.optim\.adamw?\.AdamW?'>|torch\.float32.{0,40}exp_avg(?:_sq)?\b")
_NARROW = frozenset({"adamw-8bit", "paged-adamw-8bit"})


def _wider(run: Run, evidence: Evidence) -> str | None:
    """8-bit states are asked for, and those shown are torch's: bitsandbytes names its own state1, state2, in uint8."""
    fact = run.facts.get("optimizer.name")
    if fact is None or fact.kind not in ("stated", "read") or run.job.optimizer.name not in _NARROW:
        return None
    hit = next((line for line in evidence.lines if _FP32_STATE.search(line.text)), None)
    return f"{run.job.optimizer.name} is asked for ({fact.where or fact.kind}), and the states are fp32 ({hit.where})" if hit is not None else None


def _form(run: Run, evidence: Evidence) -> Form | None:
    if _wider(run, evidence) is None:
        if run.job.parallel.strategy in DIVIDES_OPTIMIZER or (gpus(run) == 1 and gpus_known(run)):  # divided already, or nothing to divide over
            return Form(RULE.title, ("eight-bit-optimizer", "offload-optimizer", "lora", "factored-optimizer"))
        return None
    return Form("The optimizer's states are wider than asked for", ("upgrade", "eight-bit-optimizer", "zero-2", "zero-1", "offload-optimizer"))


def _undivided(run: Run, evidence: Evidence) -> str | None:
    """Every rank holds the same states, and divided over the ranks they would fit: that comes before what they are made of."""
    state, ranks = static_state.state_of(run, evidence), gpus(run)
    capacity = counters.of(evidence).capacity or (run.usable[0] if run.usable else None)
    if run.job.parallel.strategy != "ddp" or not gpus_known(run) or ranks < 2 or state is None or capacity is None:
        return None
    return f"each of {ranks} ranks holds them whole" if state.bytes > 0.95 * capacity and state.bytes / ranks < 0.8 * capacity else None


_SGD, _ADAM = pattern(r"\b(?:with )?SGD\b", re.IGNORECASE), pattern(r"\bAdam(?:W)?\b", re.IGNORECASE)
_WENT_WELL = pattern(r"\b(?:trains?|works?|worked|fits?|fine|ok|runs?|ran)\b(?! out)", re.IGNORECASE)
_FAILED = pattern(r"\b(?:error|OOMs?|out of memory|fails?|failed|dies|crash\w*|runs out|ran out)\b", re.IGNORECASE)


def _with_sgd(_run: Run, evidence: Evidence) -> str | None:
    """Both were tried: one line says that it trains with SGD, another that it fails with Adam."""
    short = [line for line in evidence.lines if len(line.text) <= 300]
    well = next((line for line in short if _SGD.search(line.text) and _WENT_WELL.search(line.text) and not _FAILED.search(line.text)), None)
    ill = next((line for line in short if _ADAM.search(line.text) and _FAILED.search(line.text) and not _SGD.search(line.text)), None)
    return f"it trains with SGD ({well.where}) and fails with Adam ({ill.where})" if well is not None and ill is not None else None


RULE = Rule(
    id="optimizer-state",
    tier="shard",
    title="The optimizer's state is what fills the card",
    cleared="The optimizer's state is a small part of the peak.",
    prior=-1.2,
    marks=(
        Mark(
            "optimizer-state-tried",
            3.5,
            "with SGD it trains",
            "torch.optim.SGD keeps one state a parameter at most, Adam two: everything else of the run is the same",
            when=_with_sgd,
        ),
        Mark(
            "optimizer-state-not-one-sample",
            1.8,
            "not even one sample fits",
            "accelerate utils/memory.py find_executable_batch_size halves the batch until it is none: what does not depend on the batch fills the card",
            when=lambda run, e: not_one_sample(e) if run.job.method.kind == "full" else None,
        ),
        Mark("optimizer-state-step", 0.8, "in the step", "the failing phase", when=_stepping),
        Mark(
            "optimizer-state-init",
            1.7,
            "the state is being built",
            "torch/optim _init_group: exp_avg, exp_avg_sq zeros_like; DeepSpeed initialize_optimizer_states; bitsandbytes init_state; Paddle _add_accumulator, "
            "_create_master_weight; fairseq build_fp32_params; a state of one's own is set by parameter and name; apex "
            "and TransformerEngine FusedAdam, apex DistributedFusedAdam StateBucket; torch SGD's momentum from the first gradient",
            pattern=(
                optimizer_frames.STATES + r"|"
                r"_init_group|initialize_optimizer_states|exp_avg(_sq)?['\"\]]*\s*\]?\s*=\s*torch\.zeros|init_state\b|get_state_buffer|"
                r"_setup_for_real_optimizer|:_add_accumulator\b|_create_master_weight|build_fp32_params|"
                r"optax/\S*:init(?:_fn)?\b|\b(?:tx|opt|optimizer)\.init\(|(?<![\w.])(?:self\.)?\w{0,12}state(?:\[\w{1,20}\])?\[[\"']\w{1,40}[\"']\]\s*=\s*"
                r"(?:torch\.(?:zeros|empty|full|clone)\w*\(|[\w.]{1,40}\.clone\()"
            ),
            on="frame",
        ),
        Mark(
            "optimizer-state-masters",
            3.5,
            "the optimizer's fp32 master weights are being made",
            "Megatron-LM core/optimizer distrib_optimizer.py shard_main_param, optimizer.py main_param; DeepSpeed stage_1_and_2.py weights_partition, "
            "stage3.py fp32_partitioned_groups_flat, bf16_optimizer.py; apex and TransformerEngine FusedAdam(master_weights=True)",
            pattern=optimizer_frames.MASTERS,
            on="frame",
            when=lambda _, e: "" if optimizer_frames.makes_masters(e) else None,
        ),
        Mark(
            "optimizer-state-returns",
            2.5,
            "the optimizer's states come back to the card after they were set aside",
            "verl fsdp_utils.load_fsdp_optimizer, megatron_utils.load_megatron_optimizer; NeMo-RL move_optimizer_to_device; DeepSpeed reload_states",
            pattern=r"(?<!accelerate/utils/)fsdp_utils\.py:load_fsdp_optimizer|:load_megatron_optimizer|:move_optimizer_to_(?:device|cuda|gpu)|:reload_optimizer_states|stage3\.py:reload_states|"
            r":\w*optim\w*: (?:\w*state\w*|v)(?:\[[^\]\n]{1,30}\]){1,2}\s*=\s*[\w.\[\]\"']{1,40}\.(?:to|cuda)\(|"
            r"reload_optimizer_states\(",
            on="frame",
        ),
        Mark(
            "optimizer-state-wider",
            4.0,
            "wider than asked for",
            "bitsandbytes optim/optimizer.py Optimizer2State: state1, state2 in uint8 with absmax and qmap; torch.optim.AdamW: exp_avg, exp_avg_sq",
            when=_wider,
        ),
        Mark("optimizer-state-undivided", -2.0, "not divided", "ZeRO (arXiv 1910.02054) divides them by the ranks", when=_undivided),
        Mark("optimizer-state-least", 1.2, "nothing left to shrink", "what remains does not depend on the batch", when=_least),
        *static_state.narrowed("optimizer-state", "optimizer", 0.35),
        *share_marks("optimizer-state", "optimizer", some=0.35, most=0.5, weights=(0.8, 1.0), noun="optimizer states"),
        *snapshots.part_marks("optimizer-state", "optimizer"),
    ),
    form=_form,
    remedies=("eight-bit-optimizer", "zero-2", "zero-1", "offload-optimizer", "lora", "factored-optimizer"),
    fires=(
        Example(
            "8-bit states that are fp32",
            job=job("Qwen/Qwen2.5-3B", method="{kind: full}", precision="{weights: bf16}", load="{dtype: bf16}", optimizer="{name: adamw-8bit}"),
            text="model.layers.0.mlp.up_proj.weight -> {'step': tensor(1.), 'exp_avg': torch.float32, 'exp_avg_sq': torch.float32}\n"
            + oom("86.00 MiB", allocated=43.5, capacity=44.4),
        ),
        Example(
            "Adam's states at the first step",
            job=job(
                "Qwen/Qwen2.5-3B",
                method="{kind: full}",
                precision="{weights: fp32, compute: bf16, mixed: autocast}",
                optimizer="{name: adamw, states: fp32, implementation: fused}",
                batch="{micro_batch: 1, seq_len: 512}",
                activations="{checkpointing: full}",
                hardware="{gpu: l40s}",
            ),
            text=trace('torch/optim/adamw.py|_init_group|state["exp_avg_sq"] = torch.zeros_like(') + oom("86.00 MiB", allocated=43.5, capacity=44.4),
        ),
    ),
    quiet=(
        Example("in the forward pass", text=trace("torch/nn/functional.py|cross_entropy") + oom("3.91 GiB", allocated=75.0)),
        Example(
            "8-bit states as asked for",
            job=job(optimizer="{name: adamw-8bit}"),
            text="state1 torch.uint8, state2 torch.uint8, absmax1 torch.float32\n" + oom("3.91 GiB", allocated=75.0),
        ),
    ),
)
