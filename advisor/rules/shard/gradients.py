"""Gradients are the peak."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import in_phase
from advisor.run import Run


def _backward(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes in the backward pass" if in_phase(evidence, "backward") else None


RULE = Rule(
    id="gradients",
    tier="shard",
    title="Gradients are what fills the card",
    cleared="Gradients are a small part of the peak.",
    prior=-1.8,
    needs=("model.name",),
    marks=(
        Mark("gradients-backward", 0.3, "in the backward pass", "the failing phase", when=_backward),
        Mark(
            "gradients-accumulate",
            1.5,
            "a gradient is being stored or reduced",
            "torch AccumulateGrad; DeepSpeed reduce_independent_p_g_buckets; FSDP _post_backward_hook, foreach_reduce",
            pattern=r"AccumulateGrad|_post_backward_hook|foreach_reduce\b|reduce_independent_p_g|\.grad\s*=|average_tensor|clip_grad_norm",
            on="frame",
        ),
        *share_marks("gradients", "gradients", some=0.3, most=0.45, weights=(0.7, 0.8), noun="gradients"),
    ),
    remedies=("zero-2", "fsdp", "optimizer-in-backward", "lora"),
    fires=(
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
