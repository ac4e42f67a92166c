"""The optimizer's step makes a parameter-sized temporary."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import fingerprint, optimizer_frames, versions_told
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom, trace
from advisor.rules.situation import in_phase
from advisor.run import Run


def _flat(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "flat-whole", "flat-shard", "flat-group") if in_phase(evidence, "step", "load") else None


RULE = Rule(
    id="optimizer-temporary",
    tier="fallback",
    title="The optimizer's step makes temporaries as large as the parameters",
    cleared="The step makes no parameter-sized temporary.",
    prior=-1.0,
    explains=("step",),
    marks=(
        Mark(
            "optimizer-temporary-foreach",
            4.5,
            "a list of temporaries is made, one for each parameter",
            "torch/optim _multi_tensor_adam: torch._foreach_sqrt, _foreach_div make new lists; _foreach_norm in clipping",
            pattern=r"_multi_tensor_\w+|torch\._foreach_(sqrt|div|mul|add|norm|lerp|addcdiv|neg)\(",
            on="frame",
            when=lambda _, e: None if optimizer_frames.makes_states(e) else "",
        ),
        Mark(
            "optimizer-temporary-single",
            2.5,
            "a temporary as large as one parameter is made",
            "torch/optim _single_tensor_adam: denom = exp_avg_sq.sqrt() / bias_correction2_sqrt; the fused kernel makes none",
            pattern=r"torch/optim/\w+\.py:_single_tensor_\w+: \w+ = [^\n]*(?:\.sqrt\(\)|\.clone\(\)|\.abs\(\))",
            on="frame",
            when=lambda _, e: None if optimizer_frames.makes_states(e) else "",
        ),
        Mark(
            "optimizer-temporary-unscale",
            2.5,
            "gradients are widened or copied for the step",
            "DeepSpeed stage_1_and_2.step: single_grad_partition to fp32; bf16_optimizer, unscale_and_clip_grads",
            pattern=r"unscale_and_clip_grads|single_grad_partition|_prepare_fp32_grad|flatten_dense_tensors|\.float\(\)|to\((dtype=)?torch\.float32\)",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "step") and not optimizer_frames.makes_masters(e) and not optimizer_frames.makes_states(e) else None,
        ),
        Mark(
            "optimizer-temporary-expression",
            2.5,
            "the step computes with a whole gradient or parameter out of place",
            "transformers optimization.py Adafactor.step: update = (grad**2) + eps, p_data_fp32.float(): each operator of an expression makes a tensor",
            pattern=r":step: \w+ = (?!.*torch\.zeros)\(?\(?[\w.]*(?:grad|update|param|exp_avg|p_data|momentum)\w*\s?(?:\*\*|[-+*/@])",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "step") else None,
        ),
        Mark(
            "optimizer-temporary-code",
            3.0,
            "the script widens whole gradients in its step",
            "torch.Tensor.to, float: a 16-bit gradient in fp32 is a temporary of twice its size; torch.linalg.vector_norm takes dtype= instead",
            pattern=r"^code\.(widens-gradients)=",
            on="key",
            when=lambda _, e: "" if in_phase(e, "step", None) else None,
        ),
        Mark(
            "optimizer-temporary-since",
            3.0,
            "the run is compared with one under torch before 2.0",
            "torch/optim/optimizer.py _default_to_fused_or_foreach (2.0): foreach by default on CUDA, which makes a temporary for each parameter",
            when=lambda _, e: versions_told.foreach_became_default(e),
        ),
        Mark(
            "optimizer-temporary-decomposition",
            2.0,
            "an update is built densely",
            "Muon newtonschulz, Adafactor update, Lion sign: each makes matrices of the parameter's shape",
            pattern=r"newton_?schulz|zeropower|adafactor\.py|_approx_sq_grad",
            on="frame",
        ),
        Mark("optimizer-temporary-flat", 2.0, "one flat buffer", "DeepSpeed and Megatron step over flat groups", when=_flat),
    ),
    remedies=("fused-optimizer", "offload-optimizer", "optimizer-in-backward"),
    fires=(
        Example(
            "an upgrade of torch",
            text="After upgrading from PyTorch 1.12.1 to PyTorch 2.1.0 the same training needs 3 GB more and is out of memory. We use torch.optim.AdamW.\n",
        ),
        Example(
            "a norm over widened gradients",
            text="def clip(parameters, most):\n    norms = []\n    for p in parameters:\n        norms.append(p.grad.float().norm())\n"
            "    return torch.stack(norms).norm()\n\nThe forward and backward pass go through, it fails in the optimizer step:\n"
            "torch.OutOfMemoryError: CUDA out of memory.\n",
        ),
        Example(
            "foreach AdamW",
            text=trace("torch/optim/adamw.py|_multi_tensor_adamw|exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)") + oom("68.00 MiB", allocated=77.0),
        ),
    ),
    quiet=(Example("in the forward pass", text=trace("torch/nn/functional.py|cross_entropy") + oom("3.91 GiB", allocated=75.0)),),
)
