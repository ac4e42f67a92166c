"""A second, fp32 gradient buffer is kept for accumulation or bucketing."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import compared
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import DIVIDES_GRADIENTS, in_phase
from advisor.run import Run

MORE, SAME = 1.05, 0.03  # of a figure: what a second gradient buffer adds at least, and what two figures of one peak may differ by


def _jax(run: Run, evidence: Evidence) -> str | None:
    failure, steps = evidence.failure, run.job.batch.gradient_accumulation or 1
    if failure is None or failure.backend != "jax" or steps < 2:
        return None
    return f"accumulation over {steps} micro batches keeps a second gradient buffer as large as the parameters"


def _tried(run: Run, evidence: Evidence) -> str | None:
    """Accumulation costs the same whatever the number of micro batches: one buffer as large as the parameters."""
    if run.job.parallel.strategy in DIVIDES_GRADIENTS:
        return None  # there it may be whole gradients that wait undivided
    figures = compared.by_value(evidence, "(?:gradient_accumulation(?:_steps)?|grad_accum(?:ulation)?(?:_steps)?|accumulate_grad_batches)")
    if len(figures) < 3 or figures[0][0] != 1:
        return None
    one, some, many = figures[0][1], figures[1][1], figures[-1][1]
    if some.value < MORE * one.value or abs(many.value - some.value) > SAME * some.value:
        return None
    return f"{one.says} with one micro batch a step, {some.says} with {figures[1][0]} and {many.says} with {figures[-1][0]} ({many.where}): one more buffer"


def _fp32_buffer(run: Run, evidence: Evidence) -> str | None:
    precision = run.job.precision
    wide = precision.gradients == "fp32" and precision.compute in ("bf16", "fp16") and precision.weights != "fp32"
    return "gradients are kept in fp32 beside 16-bit weights" if wide and in_phase(evidence, "backward", "step") else None


RULE = Rule(
    id="gradient-buffer-wide",
    tier="copies",
    title="Gradients are held a second time, in fp32",
    cleared="There is one gradient buffer, in the dtype of the weights.",
    prior=-1.2,
    marks=(
        Mark("gradient-buffer-wide-jax", 3.5, "accumulation buffer", "optax.MultiSteps state acc_grads: one leaf for each parameter", when=_jax),
        Mark("gradient-buffer-wide-tried", 3.5, "the same for any number of micro batches", "an accumulator is one leaf for each parameter", when=_tried),
        Mark(
            "gradient-buffer-wide-fp32",
            1.2,
            "fp32 gradients",
            "Megatron accumulate_allreduce_grads_in_fp32; DeepSpeed data_types.grad_accum_dtype",
            when=_fp32_buffer,
        ),
        Mark(
            "gradient-buffer-wide-frame",
            3.0,
            "the gradient buffer is being made",
            "Megatron core/distributed/param_and_grad_buffer.py; DeepSpeed bf16_optimizer fp32_groups_gradients_flat; torch reducer buckets; verl "
            "megatron_utils.py gives Megatron's buffer its storage back; fairseq optim/fp16_optimizer.py: a second gradient in fp32",
            pattern=(
                r"param_and_grad_buffer\.py:(?!\w+: self\.param_data)|fp32_groups_gradient|"
                r"_setup_for_real_optimizer(?!: self\.grad_partitions)\W.*grad|grad_accum_dtype|"
                r"bf16_optimizer\.py:_setup\w*(?!\w|: [^\n]*fp32_groups_flat_partition)|"
                r"initialize_gradient_partitions|grad_data\.storage\(\)\.resize_|_sync_fp16_grads_to_fp32"
            ),
            on="frame",
        ),
        Mark(
            "gradient-buffer-wide-reducer",
            2.5,
            "DDP is making its buckets, a second copy of all gradients",
            "torch/nn/parallel/distributed.py _ddp_init_helper: dist.Reducer; gradient_as_bucket_view=False keeps gradients beside buckets",
            pattern=r"dist\.Reducer\(|_ddp_init_helper",
            on="frame",
        ),
        Mark(
            "gradient-buffer-wide-setting",
            1.2,
            "the wide buffer is asked for",
            "Megatron --accumulate-allreduce-grads-in-fp32, --grad-reduce-in-fp32; DeepSpeed grad_accum_dtype fp32",
            pattern=(
                r"(accumulate[-_]allreduce[-_]grads[-_]in[-_]fp32|grad[-_]reduce[-_]in[-_]fp32)(['\"]?\s*[=:]\s*true)?|"
                r"grad_accum_dtype['\"]?\s*[=:]\s*['\"]?fp32"
            ),
        ),
        *share_marks("gradient-buffer-wide", "gradients", some=0.3, most=0.45, weights=(0.3, 0.5), noun="gradients"),
    ),
    remedies=("narrow-gradient-buffer", "zero-2", "smaller-micro-batch"),
    fires=(
        Example(
            "as much with two as with four",
            text="gradient_accumulation_steps=1, peak memory 11.4 GiB\ngradient_accumulation_steps=2, peak memory 16.6 GiB\n"
            "gradient_accumulation_steps=4, peak memory 16.6 GiB\n" + "It runs out of GPU memory with accumulation.\n",
        ),
        Example(
            "Megatron's fp32 buffer",
            job=job(
                "Qwen/Qwen2.5-3B",
                precision="{weights: bf16, compute: bf16, gradients: fp32}",
                framework="{name: megatron-lm}",
                parallel="{strategy: megatron, tensor: 1}",
            ),
            text=trace("megatron/core/distributed/param_and_grad_buffer.py|__init__|self.grad_data = torch.zeros(self.numel, dtype=self.grad_dtype)")
            + oom("11.50 GiB", allocated=70.0, free=7.0),
        ),
    ),
    quiet=(
        Example(
            "16-bit gradients", job=job(precision="{gradients: bf16}"), text=trace("torch/nn/functional.py|cross_entropy") + oom("3.91 GiB", allocated=75.0)
        ),
    ),
)
