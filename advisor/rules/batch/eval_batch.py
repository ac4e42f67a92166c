"""The evaluation batch is larger than the training batch."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import fingerprint, intervals
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import TRAINING, in_phase
from advisor.run import Run


def _applies(_run: Run, evidence: Evidence) -> str | None:
    return "the failure is in training or loading" if in_phase(evidence, *TRAINING, "load", "save", "resume") else None


def _larger(run: Run, _evidence: Evidence) -> str | None:
    train, settings = run.job.batch.micro_batch, run.job.eval
    if train is None or settings is None or settings.micro_batch is None or settings.micro_batch <= train:
        return None
    return f"{settings.micro_batch} sequences in evaluation, {train} in training"


def _request(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "logits", "mlp", "hidden", "attention") if in_phase(evidence, "eval") else None


def _evaluating(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes during evaluation" if in_phase(evidence, "eval") else None


def _in_model(_run: Run, evidence: Evidence) -> str | None:
    """The innermost frames are a forward pass of the user's own evaluation loop."""
    failure = evidence.failure
    if failure is None or not in_phase(evidence, "eval") or any("prediction_step" in f.function for f in failure.frames):
        return None
    return "the failing frame is in the model's own forward pass" if any(f.function == "forward" for f in failure.frames[-3:]) else None


RULE = Rule(
    id="eval-batch",
    tier="batch",
    title="Evaluation uses a larger batch than training",
    cleared="The evaluation batch is no larger than the training batch.",
    prior=-1.0,
    applies=_applies,
    explains=("eval",),
    marks=(
        Mark(
            "eval-batch-larger",
            1.5,
            "a larger batch",
            "TrainingArguments.per_device_eval_batch_size is 8 by default, whatever the training batch is",
            when=_larger,
        ),
        Mark("eval-batch-request", 1.5, "one evaluation batch", "the evaluation batch x seq_len x vocab, or x hidden", when=_request),
        Mark("eval-batch-evaluating", 0.7, "in evaluation", "the failing phase", when=_evaluating),
        Mark("eval-batch-model", 1.5, "inside the model", "one evaluation batch's own forward pass", when=_in_model),
        Mark(
            "eval-batch-frame",
            2.0,
            "the model's own forward pass runs in evaluation",
            "transformers Trainer.prediction_step -> compute_loss -> model forward",
            pattern=r"prediction_step|validation_step|eval_step",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "eval") else None,
        ),
        Mark(
            "eval-batch-due",
            2.0,
            "it is due at that step",
            "the interval of the settings against the step that the log shows last",
            when=lambda _, e: intervals.at(e, "eval", alone=True),
        ),
        Mark(
            "eval-batch-due-among",
            0.8,
            "it is due at that step, and so is another",
            "the interval of the settings against the step that the log shows last",
            when=lambda _, e: intervals.at(e, "eval", alone=False),
        ),
        Mark(
            "eval-batch-with-graph",
            1.2,
            "the evaluation loop keeps what a backward pass would need",
            "torch.no_grad",
            pattern=r"^code\.(evaluates-with-graph)=",
            on="key",
            when=lambda _, e: "" if in_phase(e, "eval", None) else None,
        ),
    ),
    remedies=("smaller-eval-batch", "eval-on-host"),
    fires=(
        Example(
            "eight in evaluation, one in training",
            job=job(batch="{micro_batch: 1, seq_len: 8192}", eval="{micro_batch: 8}"),
            text=trace(
                "transformers/trainer.py|evaluation_loop", "transformers/trainer.py|prediction_step", "transformers/models/llama/modeling_llama.py|forward"
            )
            + oom("7.83 GiB", allocated=71.0, free=6.0),
        ),
    ),
    quiet=(Example("in training", text=trace("torch/optim/adamw.py|_multi_tensor_adamw") + oom("512.00 MiB", allocated=76.5)),),
)
