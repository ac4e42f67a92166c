"""The evaluation batch is larger than the training batch."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters, fingerprint, intervals
from advisor.rules.copies.eval_accumulation import MAKES_CACHE
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import guessed
from advisor.rules.situation import ONLINE, TRAINING, in_phase
from advisor.run import Run
from advisor.units import show


def _applies(_run: Run, evidence: Evidence) -> str | None:
    return "the failure is in training or loading" if in_phase(evidence, *TRAINING, "load", "save", "resume") else None


def _larger(run: Run, _evidence: Evidence) -> str | None:
    train, settings = run.job.batch.micro_batch, run.job.eval
    if train is None or settings is None or settings.micro_batch is None or settings.micro_batch <= train:
        return None
    return f"{settings.micro_batch} sequences in evaluation, {train} in training"


def _request(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "logits", "mlp", "hidden", "attention") if in_phase(evidence, "eval") else None


def _giant(_run: Run, evidence: Evidence) -> str | None:
    """One tensor larger than all that is held: this batch's own dimensions make it, nothing that was kept before."""
    figures = counters.of(evidence)
    if figures.requested is None or figures.allocated is None or figures.requested <= figures.allocated or not in_phase(evidence, "eval"):
        return None
    if evidence.failure is not None and evidence.failure.frames and _in_model(_run, evidence) is None:
        return None
    return (
        f"one tensor of {show(figures.requested)} is asked for, with {show(figures.allocated)} held in all: an evaluation step of its own dimensions makes it"
    )


def _evaluating(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes during evaluation" if in_phase(evidence, "eval") else None


def _in_model(_run: Run, evidence: Evidence) -> str | None:
    """The innermost frames are a forward pass of the user's own evaluation loop."""
    failure = evidence.failure
    if failure is None or not in_phase(evidence, "eval") or any("prediction_step" in f.function for f in failure.frames):
        return None
    within = any(f.function == "forward" or f.file.startswith("diffusers/models/") for f in failure.frames[-3:])
    return "the failing frame is in the model's own forward pass" if within else None


_GENERATES = pattern(r"diffusers/pipelines/\S*:__call__|generation/utils\.py:\w+|\.generate\(")


def _generates(run: Run, evidence: Evidence) -> str | None:
    """``generate`` of the model that is being trained, with no engine and no objective that needs it: a sample or an evaluation in between."""
    failure = evidence.failure
    if failure is None or run.job.rollout is not None or run.job.objective in ONLINE or not in_phase(evidence, "rollout", "eval"):
        return None
    frame = next((f for f in failure.frames if _GENERATES.search(f"{f.file}:{f.function}: {f.code}")), None)
    return f"text is generated in between ({frame.where}), with the training state on the card" if frame is not None else None


_OF_VALIDATION = pattern(r"^(?:val|valid|validation|test|eval|evaluation)_?(?:dataset|data|set|pipeline|transforms?|loader|dataloader)?\b", re.IGNORECASE)
_OF_TRAIN = pattern(r"^train(?:ing)?_?(?:dataset|data|set|pipeline|transforms?|loader|dataloader)?\b", re.IGNORECASE)
_CUTS = pattern(r"crop|resize|rescale|max_?(?:len|size|length)|cut_?off|truncat|image_?size|img_?scale", re.IGNORECASE)


def _uncut(_run: Run, evidence: Evidence) -> str | None:
    """The settings bound a training sample (a crop, a size, a length) and leave one of the validation as long or large as it comes."""
    if not in_phase(evidence, "eval"):
        return None
    train = [(where, key, value) for where, key, value in evidence.seen_keys if _OF_TRAIN.match(key)]
    valid = [(where, key, value) for where, key, value in evidence.seen_keys if _OF_VALIDATION.match(key)]
    cut = next((where for where, key, value in train if _CUTS.search(f"{key}={value}")), None)
    transforms = [where for where, key, _ in valid if "transform" in key.lower() or "pipeline" in key.lower()]
    if cut is None or not transforms or any(_CUTS.search(f"{key}={value}") for _, key, value in valid):
        return None
    return f"samples of the training are cut ({cut}), those of the validation are taken as they come ({transforms[0]})"


def _samples(run: Run, evidence: Evidence) -> str | None:
    """The same told in words, with no frame that shows it."""
    failure = evidence.failure
    if failure is None or failure.frames or run.job.rollout is not None or run.job.objective in ONLINE or not in_phase(evidence, "rollout"):
        return None
    return f"samples are generated in between ({failure.where}), with the training state on the card"


def _no_larger(run: Run, evidence: Evidence) -> str | None:
    """A batch as large as training's, without a backward pass: it needs less than training did."""
    train, settings = run.job.batch.micro_batch, run.job.eval
    if train is None or settings is None or settings.micro_batch is None or settings.micro_batch > train or not in_phase(evidence, "eval"):
        return None
    if guessed(run, "batch.micro_batch") or guessed(run, "eval.micro_batch") or _generates(run, evidence) is not None:
        return None
    return f"{settings.micro_batch} sequences in evaluation, {train} in training, which went through"


def _form(run: Run, evidence: Evidence) -> Form | None:
    if _samples(run, evidence) is not None:
        return Form("Samples are generated beside the training state, in a batch of their own", ("smaller-eval-batch",))
    if _generates(run, evidence) is None:
        return None
    return Form("Text is generated beside the training state: the cache grows with sequences, beams and new tokens", ("smaller-eval-batch",))


RULE = Rule(
    id="eval-batch",
    tier="batch",
    title="Evaluation uses a larger batch than training",
    cleared="The evaluation batch is no larger than the training batch.",
    prior=-1.0,
    applies=_applies,
    explains=("eval", "rollout"),
    marks=(
        Mark(
            "eval-batch-graph",
            -2.0,
            "the evaluation builds a graph",
            "torch.no_grad: without it a batch of the same size keeps what a backward pass would need",
            pattern=r"^code\.(evaluates-with-graph)=",
            on="key",
        ),
        Mark(
            "eval-batch-cache",
            2.0,
            "what evaluation generates needs a key-value cache of its own, beside all that training holds",
            "litgpt finetune/full.py generate_example: model.set_kv_cache for the whole context length; torchtune setup_caches",
            pattern=MAKES_CACHE,
            on="frame",
            when=lambda _, e: "" if in_phase(e, "eval") else None,
        ),
        Mark(
            "eval-batch-larger",
            1.5,
            "a larger batch",
            "TrainingArguments.per_device_eval_batch_size is 8 by default, whatever the training batch is",
            when=_larger,
        ),
        Mark(
            "eval-batch-giant", 1.5, "larger than all that is held", "a tensor of a batch grows with it; weights and kept results are on the card", when=_giant
        ),
        Mark("eval-batch-request", 1.5, "one evaluation batch", "the evaluation batch x seq_len x vocab, or x hidden", when=_request),
        Mark(
            "eval-batch-generates",
            3.0,
            "generation in between",
            "transformers generation/utils.py: keys and values of num_beams x num_return_sequences copies of the batch, for each new token",
            when=_generates,
        ),
        Mark(
            "eval-batch-samples", 2.5, "samples in between", "a trainer that shows samples runs the model as an inference does, beside its state", when=_samples
        ),
        Mark(
            "eval-batch-uncut",
            2.5,
            "validation samples are not cut",
            "mmsegmentation, PaddleSeg, detectron2: training crops, and the test pipeline keeps the image's own size",
            when=_uncut,
        ),
        Mark("eval-batch-no-larger", -1.5, "no larger than in training", "torch.no_grad: a forward pass alone keeps nothing for a backward", when=_no_larger),
        Mark(
            "eval-batch-told",
            1.5,
            "the evaluation's own batch size is spoken of",
            "transformers TrainingArguments.per_device_eval_batch_size: 8 unless it is set",
            pattern=r"\b(?:per_device_)?eval(?:uation)?[_ ](?:micro[_ ])?batch(?:[_ ]size)?\b(?!\W{0,3}[=:]|\W{0,2}\d)",
            on="line",
            when=lambda _, e: "" if in_phase(e, "eval") else None,
        ),
        Mark(
            "eval-batch-first",
            1.5,
            "it fails as soon as evaluation starts",
            "a batch that is too large fails as the first one; what is collected takes many",
            pattern=r"\b(?:first|start of (?:the )?|beginning of (?:the )?|as soon as (?:the )?|immediately (?:at|in|on|when) (?:the )?)\s?"
            r"(?:eval|validation)",
            on="line",
            when=lambda _, e: "" if in_phase(e, "eval") else None,
        ),
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
    form=_form,
    remedies=("smaller-eval-batch", "eval-on-host"),
    fires=(
        Example(
            "a sample every few hundred steps",
            text=trace(
                "finetune.py|main|ids = policy.generate(prompt, num_beams=5)", "transformers/generation/utils.py|_beam_search|outputs = self(**model_inputs)"
            )
            + oom("96.00 MiB", allocated=22.9, capacity=23.69),
        ),
        Example(
            "eight in evaluation, one in training",
            job=job(batch="{micro_batch: 1, seq_len: 8192}", eval="{micro_batch: 8}"),
            text=trace(
                "transformers/trainer.py|evaluation_loop", "transformers/trainer.py|prediction_step", "transformers/models/llama/modeling_llama.py|forward"
            )
            + oom("7.83 GiB", allocated=71.0, free=6.0),
        ),
    ),
    quiet=(
        Example(
            "generation by an objective that needs it",
            job=job("Qwen/Qwen2.5-3B", objective="grpo", rollout="{engine: hf}"),
            text=trace("trl/trainer/grpo_trainer.py|_generate", "transformers/generation/utils.py|generate|result = decoding_method(")
            + oom("130.00 MiB", allocated=76.5),
        ),
        Example("in training", text=trace("torch/optim/adamw.py|_multi_tensor_adamw") + oom("512.00 MiB", allocated=76.5)),
    ),
)
