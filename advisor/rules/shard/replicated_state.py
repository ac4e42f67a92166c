"""Parameters, gradients or optimizer state are replicated on every rank."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, growth, observed, spreading, static_state
from advisor.rules.hardware.capacity import least_state
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.rules.shares import at_failure
from advisor.rules.situation import DIVIDES_WEIGHTS, QUANTISED, gpus, gpus_known, in_phase, loads_weights, names_more_gpus, weight_bytes
from advisor.run import Run
from advisor.units import show

STATE = ("weights", "gradients", "optimizer", "reference", "reward", "critic")


DIVIDED = {"zero1": ("optimizer",), "megatron-distributed": ("optimizer",), "zero2": ("optimizer", "gradients")}  # what is not whole on every rank


def _ranks(run: Run) -> int:
    """Ranks that hold the same: the others split matrices, layers or the sequence."""
    p = run.job.parallel
    return max(1, gpus(run) // max(1, (p.tensor or 1) * (p.pipeline or 1)))


def _applies(run: Run, evidence: Evidence) -> str | None:
    if run.job.parallel.strategy in DIVIDES_WEIGHTS:
        return f"{run.job.parallel.strategy} divides the state over the ranks"
    fact = run.facts.get("parallel.strategy")
    if (fact is None or fact.kind == "assumed") and gpus(run) > 1 and (spread := spreading.by_device_map(run, evidence)) is not None:
        return f"{spread}: each card holds other layers"
    if gpus(run) < 2 and (run.job.parallel.strategy in (None, "none")) and observed.whole_on_each(evidence) is None:
        return "there is one GPU: nothing to divide over"
    return None


def _state(run: Run, evidence: Evidence) -> int | None:
    """State of one rank by the estimate; without one, the weights alone."""
    found = at_failure(run, evidence)
    if found is None:
        state = static_state.state_of(run, evidence)
        if state is not None:
            divided = DIVIDED.get(run.job.parallel.strategy or "", ())
            return sum(size for part, size in state.parts.items() if part not in divided)
        return None if run.job.method.base in QUANTISED else weight_bytes(run, 2.0, evidence)
    divided = DIVIDED.get(run.job.parallel.strategy or "", ())
    return sum(found[0].get(part, 0) for part in STATE if part not in divided)


def _capacity(run: Run, evidence: Evidence) -> int | None:
    return counters.of(evidence).capacity or (run.usable[0] if run.usable else None)


# transformers integrations/accelerate.py: one process spreads the layers over all cards, and Trainer then runs no DDP (is_model_parallel)
_NAIVE = pattern(r"\bdevice_map\s?=\s?[\"']?(?:auto|balanced\w*|sequential)\b")


def _only_assumed(run: Run, evidence: Evidence) -> bool:
    """That each rank holds everything is an assumption, and it does not hold.

    XLA divides by annotations that no text shows, one process spreads layers over the cards, or steps went through.
    """
    fact, failure = run.facts.get("parallel.strategy"), evidence.failure
    if fact is None or fact.kind != "assumed":
        return False
    if any(_NAIVE.search(line.text) for line in evidence.lines):
        return True
    return (failure is not None and failure.backend in ("jax", "tensorflow")) or (growth.last_step(evidence) or 0) > 1


def _trained_before(evidence: Evidence) -> bool:
    """What fails after training steps, in evaluation, at saving or at merging, had the room for the state of training."""
    return in_phase(evidence, "eval", "save", "merge")


def _exceeds(run: Run, evidence: Evidence) -> str | None:
    """State alone fills the card; a share of it would not."""
    if _only_assumed(run, evidence) or _trained_before(evidence):
        return None
    state, capacity, ranks = _state(run, evidence), _capacity(run, evidence), _ranks(run)
    if state is None or capacity is None or ranks < 2 or state < 0.6 * capacity:
        return None
    divided = DIVIDED.get(run.job.parallel.strategy or "", ())
    whole = [words for part, words in (("weights", "weights"), ("gradients", "gradients"), ("optimizer", "optimizer state")) if part not in divided]
    named = " and ".join([*([", ".join(whole[:-1])] if whole[:-1] else []), whole[-1]])
    return f"{show(state)} of {named} on each rank; divided by {ranks} that is {show(state / ranks)}"


def _alone(run: Run, evidence: Evidence) -> str | None:
    if _only_assumed(run, evidence) or _trained_before(evidence):
        return None
    state, capacity, ranks = _state(run, evidence), _capacity(run, evidence), _ranks(run)
    if state is None or capacity is None or ranks < 2:
        return None
    fits = state / ranks < 0.8 * capacity
    return (
        f"the state alone is larger than the card ({show(state)} of {show(capacity)}), and a share of it is not" if state > 0.95 * capacity and fits else None
    )


def _told(run: Run, evidence: Evidence) -> str | None:
    fact = run.facts.get("parallel.strategy")
    unknown = fact is None or fact.kind not in ("stated", "read", "inferred")
    return None if unknown and observed.names_sharding(evidence) else observed.whole_on_each(evidence)


def _never(run: Run, evidence: Evidence) -> str | None:
    """Not even divided does the state of training fit."""
    least, capacity = least_state(run, evidence), _capacity(run, evidence)
    if least is None or capacity is None or least < 0.95 * capacity or not gpus_known(run) or loads_weights(evidence):
        return None
    return f"divided over all {gpus(run)} GPUs it is {show(least)} on a card of {show(capacity)} still"


def _same_everywhere(_run: Run, evidence: Evidence) -> str | None:
    used = [d.used_bytes for d in evidence.devices if d.used_bytes]
    alike = len(used) >= 2 and min(used) > 0.9 * max(used)
    return f"all {len(used)} cards hold about the same ({show(max(used))}): a copy each" if alike and in_phase(evidence, "load") else None


def _data_parallel(run: Run, evidence: Evidence) -> str | None:
    if _only_assumed(run, evidence) or _trained_before(evidence):
        return None
    if evidence.failure is None or run.job.parallel.strategy != "ddp" or gpus(run) < 2 or (run.architecture is None and not gpus_known(run)):
        return None  # that one card of several is named, of a model that is not known, says nothing of its state
    return "plain data parallelism keeps everything on each rank"


_ONE = pattern(r"switching to use `?NO_SHARD`? instead of [^\n]{0,60}world size is 1")


def _one_of_several(run: Run, evidence: Evidence) -> str | None:
    """FSDP found one process where the machine has several cards; on a machine with one card that is how it is."""
    line = next((line for line in evidence.lines if _ONE.search(line.text)), None)
    if line is None or names_more_gpus(run, evidence) is None:
        return None
    return f"FSDP finds one process and divides nothing ({line.where}), where several cards are shown"


_REPLICAS = pattern(r"nn/parallel/(?:replicate\.py:|comm\.py:(?:broadcast_coalesced|gather)|scatter_gather\.py:gather|data_parallel\.py:forward: .*gather)")


def _form(run: Run, evidence: Evidence) -> Form | None:
    """One process where several cards were meant: the launch is what is wrong, not the strategy."""
    if any(_REPLICAS.search(f"{f.file}:{f.function}: {f.code}") for f in evidence.frames):
        return Form(
            "One process drives every card: DataParallel copies the module to each in each step and joins the outputs on the first",
            ("correct-launch", "fsdp", "zero-3"),
        )
    if _one_of_several(run, evidence) is None:
        return None
    return Form("One process was started, so that sharding divides by one: everything is held whole", ("correct-launch", "fsdp"))


RULE = Rule(
    id="replicated-state",
    tier="shard",
    title="Weights, gradients or optimizer state are held whole on every rank",
    cleared="State is divided, or is not what fills the card.",
    prior=-1.0,
    applies=_applies,
    marks=(
        Mark(
            "replicated-state-ddp",
            1.0,
            "data parallel",
            "torch DistributedDataParallel replicates the module; ZeRO-1 and 2 keep whole weights",
            when=_data_parallel,
        ),
        Mark(
            "replicated-state-reducer",
            2.0,
            "DDP makes the buckets for all gradients of the whole model",
            "torch/nn/parallel/distributed.py _ddp_init_helper: dist.Reducer allocates a bucket for each gradient, on every rank the same",
            pattern=r"_ddp_init_helper|dist\.Reducer\(",
            on="frame",
        ),
        Mark(
            "replicated-state-each-step",
            3.5,
            "DataParallel copies the whole module to every card in each step",
            "torch/nn/parallel/data_parallel.py forward: self.replicate(module, device_ids), by broadcast_coalesced",
            pattern=r"nn/parallel/replicate\.py:|comm\.py:broadcast_coalesced|data_parallel\.py:forward: replicas",
            on="frame",
        ),
        Mark(
            "replicated-state-engine-moves",
            2.0,
            "the whole 16-bit module goes to each rank",
            "DeepSpeed runtime/engine.py _configure_distributed_model: module.to(device); stages 1 and 2 divide what comes after it",
            pattern=r"_configure_distributed_model: .*module\.to\(",
            on="frame",
            when=lambda run, _: "" if run.job.parallel.strategy in ("zero1", "zero2") else None,
        ),
        Mark(
            "replicated-state-every-device",
            3.0,
            "the whole state of training is copied to every device",
            "flax/jax_utils.py replicate: jax.device_put_replicated, for pmap",
            pattern=r"jax_utils\.(?:py:)?replicate\b|device_put_replicated",
            on="frame",
        ),
        Mark(
            "replicated-state-first-card",
            3.0,
            "DataParallel joins all outputs on the first card",
            "torch/nn/parallel/data_parallel.py forward: self.gather(outputs, self.output_device): one process, whose first card holds more than the others",
            pattern=r"nn/parallel/(?:data_parallel\.py:forward: .*gather|scatter_gather\.py:gather|_functions\.py:forward: .*gather|comm\.py:gather)",
            on="frame",
        ),
        Mark(
            "replicated-state-zero-setup",
            2.5,
            "the optimizer's shares find no room beside whole weights",
            "DeepSpeed runtime/zero/stage_1_and_2.py __init__: 16-bit weights stay whole on each rank, masters and states are divided",
            pattern=r"stage_1_and_2\.py:(?:__init__|initialize_optimizer_states)|_configure_zero_optimizer",
            on="frame",
            when=lambda run, e: "" if run.job.parallel.strategy in ("zero1", "zero2") and gpus(run) > 1 and in_phase(e, "load", "step") else None,
        ),
        Mark(
            "replicated-state-alone-in-the-world",
            5.0,
            "one process of several cards",
            "torch distributed/fsdp/_init_utils.py: 'FSDP is switching to use `NO_SHARD` instead of ... since the world size is 1.'",
            when=_one_of_several,
        ),
        Mark("replicated-state-exceeds", 1.5, "state fills the card", "the estimate's ledger; ZeRO (arXiv 1910.02054) divides it by the ranks", when=_exceeds),
        Mark("replicated-state-alone", 2.0, "state alone is too large", "the estimate's ledger", when=_alone),
        Mark(
            "replicated-state-undivided-masters",
            3.0,
            "the fp32 master weights are made whole on each rank",
            "Megatron-LM core/optimizer/optimizer.py Float16OptimizerWithFloat16Params; with --use-distributed-optimizer it is distrib_optimizer.py",
            pattern=r"megatron/\S*optimizer/optimizer\.py:__init__: main_param",
            on="frame",
            when=lambda run, _: "" if gpus(run) > 1 else None,
        ),
        Mark(
            "replicated-state-told",
            3.0,
            "each card loads the whole model",
            "DistributedDataParallel, ZeRO-1 and ZeRO-2 keep whole weights on each rank (ZeRO, arXiv 1910.02054, section 5)",
            when=_told,
        ),
        Mark("replicated-state-never", -2.0, "not even divided", "the sum of the state, divided by all ranks", when=_never),
        Mark("replicated-state-same", 0.7, "cards alike", "nvidia-smi", when=_same_everywhere),
    ),
    form=_form,
    remedies=("zero-3", "fsdp", "zero-2", "zero-1", "qlora"),
    fires=(
        Example(
            "full training of 13B under DDP",
            job=job(
                "meta-llama/Llama-2-13b-hf",
                method="{kind: full}",
                precision="{weights: bf16, compute: bf16}",
                parallel="{strategy: ddp, shard: 8}",
                batch="{micro_batch: 1, seq_len: 512}",
                activations="{checkpointing: full, attention: flash-2}",
                hardware="{gpu: a100-80gb, gpus_per_node: 8}",
            ),
            text=oom("136.00 MiB", allocated=77.9),
        ),
        Example(
            "told in words, under ZeRO-2",
            text='{"zero_optimization": {"stage": 2}}\n'
            "Every rank holds a full copy of the model weights, so a 20B model goes OOM at start-up on my 4 GPUs with 24GB.\n",
        ),
        Example("told in Chinese", text="用 lora 微调 34B 模型，每张卡都要加载完整的模型权重，4张卡全部显存不足。\n"),
    ),
    quiet=(
        Example("asked, not seen", text="How can I load the whole model on each GPU?\n" + oom("512.00 MiB", allocated=76.5)),
        Example(
            "a program of XLA divides as its annotations say, which no text shows",
            job=job("Qwen/Qwen2.5-7B", hardware="{gpu: a100-80gb, gpus_per_node: 8, nodes: 2}"),
            text="jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 14.30GiB.\n",
        ),
        Example("divided", job=job(parallel="{strategy: zero3, shard: 8}"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
