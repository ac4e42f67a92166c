"""Gradients are the peak."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import fingerprint, growth
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import DIVIDES_GRADIENTS, in_phase, sharded, smallest_batch
from advisor.run import Run
from advisor.units import show


def _backward(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes in the backward pass" if in_phase(evidence, "backward") else None


STATELESS = frozenset({"adafactor", "sgd", "came", "galore-adamw", "apollo", "lomo", "adalomo"})  # less than a fp32 moment for each parameter


def _rises(_run: Run, evidence: Evidence) -> str | None:
    """What is held rises through the backward pass: the activations are given back there, so what comes is gradients."""
    both = growth.in_backward(evidence)
    if both is None:
        return None
    first, last = both
    return f"{show(first.allocated_bytes or 0)} become {show(last.allocated_bytes or 0)} through the backward pass ({first.where}, {last.where})"


def _one_gradient(run: Run, evidence: Evidence) -> str | None:
    """The failed request of the backward pass is as large as one weight, and as no activation."""
    if not in_phase(evidence, "backward") or sharded(run) or run.job.method.kind != "full":
        return None
    return fingerprint.match(run, evidence, "weight", "vocabulary-weight", alone=True)


def _rest(run: Run, evidence: Evidence) -> str | None:
    """In the backward pass of one recomputed sequence, with an optimizer that keeps little: weights and gradients are what there is."""
    job = run.job
    little = job.optimizer.name in STATELESS or (job.offload.optimizer not in (None, "none")) or str(job.optimizer.name or "").startswith("paged")
    if not little or job.method.kind != "full" or not in_phase(evidence, "backward"):
        return None
    return smallest_batch(run)


def _form(run: Run, _evidence: Evidence) -> Form | None:
    """Divided already: what is left is to keep the shares elsewhere, or to train less."""
    return Form(RULE.title, ("offload-optimizer", "lora", "more-gpus", "smaller-buckets")) if run.job.parallel.strategy in DIVIDES_GRADIENTS else None


RULE = Rule(
    id="gradients",
    tier="shard",
    title="Gradients are what fills the card",
    cleared="Gradients are a small part of the peak.",
    prior=-1.8,
    needs=("model.name",),
    marks=(
        Mark(
            "gradients-rises", 3.5, "rises through the backward pass", "autograd frees what is saved as it goes; AccumulateGrad stores a gradient", when=_rises
        ),
        Mark("gradients-request", 1.5, "a weight's gradient is asked for", "AccumulateGrad stores a tensor of its weight's shape", when=_one_gradient),
        Mark("gradients-rest", 2.2, "nothing else is left", "the micro batch is one recomputed sequence, and the optimizer keeps little", when=_rest),
        Mark("gradients-backward", 0.3, "in the backward pass", "the failing phase", when=_backward),
        Mark(
            "gradients-accumulate",
            1.5,
            "a gradient is being stored or reduced",
            "torch AccumulateGrad; DeepSpeed reduce_independent_p_g_buckets; FSDP _post_backward_hook, foreach_reduce",
            pattern=r"AccumulateGrad|_post_backward_hook|foreach_reduce\b|reduce_independent_p_g|\.grad\s*=|average_tensor|clip_grad_norm",
            on="frame",
        ),
        Mark(
            "gradients-partition",
            3.5,
            "the buffer of the rank's own gradients is being made",
            "DeepSpeed stage3.py grad_partitions_flat_buffer, stage_1_and_2.py grads_in_partition: in the dtype of the parameters, divided already",
            pattern=r":\w+: self\.(?:grad_partitions_flat_buffer|grads_in_partition)\b[^\n]*=\s?torch\.",
            on="frame",
        ),
        *share_marks("gradients", "gradients", some=0.3, most=0.45, weights=(0.7, 0.8), noun="gradients"),
    ),
    form=_form,
    remedies=("zero-2", "fsdp", "optimizer-in-backward", "lora"),
    fires=(
        Example(
            "figures of one backward pass",
            text="memory before backward allocated 9.8 GiB\nbackward, layer 20 of 32: allocated 13.4 GiB\nbackward, layer 10 of 32: allocated 16.5 GiB\n"
            + trace("torch/autograd/graph.py|_engine_run_backward")
            + oom("50.00 MiB", allocated=22.4, capacity=23.65),
        ),
        Example(
            "one card, whole gradients",
            job=job(
                "meta-llama/Llama-2-7b-hf",
                method="{kind: full}",
                precision="{weights: bf16, gradients: fp32}",
                optimizer="{name: paged-adamw-8bit}",
                parallel="{strategy: none}",
                batch="{micro_batch: 1, seq_len: 512}",
                activations="{checkpointing: full, attention: flash-2, loss: fused-linear}",
                hardware="{gpu: a100-40gb}",
            ),
            text=trace("torch/autograd/graph.py|_engine_run_backward", "torch/distributed/fsdp/_runtime_utils.py|_post_backward_hook")
            + oom("344.00 MiB", allocated=38.3, capacity=39.39),
        ),
    ),
    quiet=(Example("in the loss", text=trace("torch/nn/functional.py|cross_entropy") + oom("3.91 GiB", allocated=75.0)),),
)
