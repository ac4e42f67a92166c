"""Evaluation gathers logits or predictions on the device."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.report import Doing
from advisor.rules import counters, growth, intervals, observed
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import oom, trace
from advisor.rules.situation import TRAINING, in_phase
from advisor.run import Run
from advisor.units import MIB, show

_EVALUATION = pattern(r"eval|predict|valid|\bval\b", re.IGNORECASE)
_OF_TRAINING = pattern(r"\W{0,2}(?:training |train |optimi[sz]er )?steps?\b", re.IGNORECASE)  # "at 1000/4000 steps when evaluation begins"
_PROGRESS = pattern(r"(\d{1,8})/(\d{1,8})\b")  # tqdm
_MODEL = pattern(
    r":forward$|:_call_impl$|:_wrapped_call_impl$|modeling_\w+\.py|nn/modules/|nn/functional\.py|loss_utils\.py|peft/tuners|diffusers/models/|:prediction_step|:compute_loss"
)
BATCHES = 3  # from this many batches on, a whole multiple of one batch's logits is an accumulation


def _inside_model(_run: Run, evidence: Evidence) -> str | None:
    """One batch's own forward pass fails: nothing is being collected."""
    failure = evidence.failure
    inner = failure.frames[-1] if failure is not None and failure.frames else None
    if inner is None or not in_phase(evidence, "eval"):
        return None
    return "the failing frame is in the model's own forward pass" if _MODEL.search(f"{inner.file}:{inner.function}") else None


def _outside_model(_run: Run, evidence: Evidence) -> str | None:
    """What fails is computed from what the model returned: predictions and scores are on the card."""
    failure = evidence.failure
    if failure is None or not failure.frames or not in_phase(evidence, "eval") or _inside_model(_run, evidence):
        return None
    return None if any(_MODEL.search(f"{f.file}:{f.function}") for f in failure.frames) else "the failing line is outside the model's forward pass"


def _large(_run: Run, evidence: Evidence) -> str | None:
    figures = counters.of(evidence)
    if _outside_model(_run, evidence) is None or figures.requested is None or figures.allocated is None or figures.requested < 0.5 * figures.allocated:
        return None
    return f"one tensor of {show(figures.requested)} is asked for beside {show(figures.allocated)} in all: more than one batch makes"


def _multiple(run: Run, evidence: Evidence) -> str | None:
    """Concatenation asks for all batches so far in one tensor."""
    if _inside_model(run, evidence):
        return None
    shape, requested = run.architecture, counters.of(evidence).requested
    batch = (run.job.eval.micro_batch if run.job.eval else None) or run.job.batch.micro_batch
    length = run.job.batch.seq_len
    if shape is None or requested is None or batch is None or length is None or not in_phase(evidence, "eval"):
        return None
    one = batch * length * shape.vocab * 4
    count = round(requested / one)
    if count >= BATCHES and abs(requested - count * one) <= 0.02 * one + 4 * MIB:
        return f"the request of {show(requested)} is the logits of {count} evaluation batches in fp32"
    return None


def _more_than_held(_run: Run, evidence: Evidence) -> str | None:
    """What joins collected tensors is as large as they are together, and they are on the card: no more than is allocated."""
    figures = counters.of(evidence)
    if figures.requested is None or figures.allocated is None or figures.requested <= figures.allocated or not in_phase(evidence, "eval"):
        return None
    if _outside_model(_run, evidence) is not None:
        return None  # what is computed from the results may be larger than they are
    return f"one tensor of {show(figures.requested)} is asked for, more than the {show(figures.allocated)} that could have been collected"


# "evaluation dies a bit over 1/2 way", "OOM at 94% of the evaluation": a batch that is too large would fail as the first one
_WAY = r"(?:half[- ]?way|mid-?way|part[- ]?way|1/2 (?:way|through)|in the middle of|at (?:about |around |~ ?)?\d{1,2} ?%)"
_EVAL = r"\b(?:evaluat\w{1,5}|validation|eval)\b"
_MIDWAY = pattern(rf"{_EVAL}[^.!?\n]{{0,100}}\b{_WAY}|\b{_WAY}[^.!?\n]{{0,60}}{_EVAL}", re.IGNORECASE)


def _batches_passed(_run: Run, evidence: Evidence) -> str | None:
    """Evaluation batches went through before it failed: one batch is not too large, what is kept of them is."""
    if in_phase(evidence, *TRAINING, "load", "save", "resume"):
        return None
    for line in evidence.lines:
        found = _PROGRESS.search(line.text) if _EVALUATION.search(line.text) else None
        if found and 1 < int(found.group(1)) < int(found.group(2)) and not _OF_TRAINING.match(line.text[found.end() :]):
            return f"{found.group(1)} of {found.group(2)} evaluation batches went through before it failed ({line.where})"
        if in_phase(evidence, "eval") and (told := _MIDWAY.search(line.text)) is not None:
            return f"it fails on the way through the evaluation: '{told[0][-60:]}' ({line.where})"
    return None


def _first_batch(_run: Run, evidence: Evidence) -> str | None:
    """The last line of an evaluation's progress shows its first batch: nothing was collected yet."""
    if not in_phase(evidence, "eval"):
        return None
    last: tuple[int, str] | None = None
    for line in evidence.lines:
        found = _PROGRESS.search(line.text) if _EVALUATION.search(line.text) else None
        if found and int(found.group(1)) < int(found.group(2)) and not _OF_TRAINING.match(line.text[found.end() :]):
            last = int(found.group(1)), line.where
    return f"the first evaluation batch fails already ({last[1]})" if last is not None and last[0] <= 1 else None


def _evaluating(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes during evaluation" if in_phase(evidence, "eval") else None


def _evaluation_or_unsettled(_run: Run, evidence: Evidence) -> str | None:
    return "" if in_phase(evidence, "eval") else None


def _keeps(run: Run, evidence: Evidence) -> str | None:
    settings = run.job.eval
    if settings is None or settings.accumulate != "device" or settings.keeps != "logits":
        return None
    return "evaluation keeps every batch's logits on the device" if in_phase(evidence, "eval") else None


_TRAINER = pattern(r"transformers/trainer|trainer_pt_utils|evaluation_loop|EvalLoopContainer|nested_concat")
_WHY = "The texts give no evaluation settings to estimate with: the traceback alone shows that predictions gather on the card."


def _form(run: Run, evidence: Evidence) -> Form | None:
    """Where no evaluation was read there is none to estimate: what to do is told by the loop that the frames show."""
    if run.job.eval is not None or not in_phase(evidence, "eval"):
        return None
    if any(_TRAINER.search(f"{f.file}:{f.function}") for f in evidence.frames):
        lines: dict[str, tuple[str, ...]] = {
            "hf-trainer": (
                "eval_accumulation_steps=1   # move predictions to the host after each batch",
                "preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1)   # an argument of the trainer: keep token ids, not logits",
                "prediction_loss_only=True   # where no metric needs predictions",
            )
        }
    else:
        lines = {"script": ("predictions.append(logits.argmax(dim=-1).cpu())   # after each batch: what the metric needs, in host memory",)}
    return Form(RULE.title, ("eval-on-host",), {"eval-on-host": Doing("Gather predictions on the host, or keep less of them", _WHY, lines)})


MAKES_CACHE = r":(?:set|build|setup)_(?:kv_)?caches?\b|\bKVCache\("

RULE = Rule(
    id="eval-accumulation",
    tier="copies",
    title="Evaluation collects every batch's predictions on the card",
    cleared="Nothing collects predictions on the card.",
    prior=-1.0,
    explains=("eval",),
    marks=(
        Mark(
            "eval-accumulation-grows",
            5.0,
            "it grows from one evaluation batch to the next",
            "an evaluation runs without a graph, so that a batch leaves nothing but what is collected of it",
            when=lambda _, e: growth.in_evaluation(e),
        ),
        Mark(
            "eval-accumulation-graph",
            -2.0,
            "the evaluation builds a graph",
            "torch.no_grad: without it each forward pass keeps what a backward pass would need",
            pattern=r"^code\.(evaluates-with-graph)=",
            on="key",
        ),
        Mark("eval-accumulation-more-than-held", -3.0, "more than is held", "torch.cat: its result is as large as its parts", when=_more_than_held),
        Mark(
            "eval-accumulation-concat",
            4.0,
            "predictions of all batches are joined on the device",
            "transformers trainer_pt_utils.nested_concat / torch_pad_and_concatenate / EvalLoopContainer; keras Trainer.predict potentially_ragged_concat; "
            "torchmetrics utilities/data.py dim_zero_cat; mmengine dist collect_results",
            pattern=(
                r"nested_concat|torch_pad_and_concatenate|EvalLoopContainer|nested_gather|pad_across_processes|all_preds|preds_host|"
                r"gather_for_metrics|_gpu_gather|distributed_concat|potentially_ragged_concat|dim_zero_cat|:collect_results\w*|step_outputs\.append"
            ),
            on="frame",
        ),
        Mark(
            "eval-accumulation-generated",
            4.0,
            "generation keeps what each new token's step returns",
            "transformers generation/utils.py _sample, _beam_search: output_scores, output_logits, output_hidden_states, output_attentions: a piece a token",
            pattern=r"generation/utils\.py:_\w+: \w*(?:scores|logits|hidden_states|attentions) \+= ",
            on="frame",
        ),
        Mark(
            "eval-accumulation-metrics",
            2.0,
            "it happens only with a metric that takes predictions: without one the trainer keeps losses alone",
            "transformers Trainer.evaluate: prediction_loss_only=True if self.compute_metrics is None else None",
            pattern=r"\b(?:remov\w+|without|comment\w* out|disabl\w+|drop\w*|delet\w+)\W{1,3}(?:the |my )?`?compute_metrics",
            on="line",
        ),
        Mark(
            "eval-accumulation-predictions",
            1.0,
            "a metric takes every prediction at once",
            "transformers trainer_utils.EvalPrediction: predictions of the whole evaluation set",
            pattern=r"\bdef compute_metrics\(|(?<![\w.])\w+\.predictions\b",
            when=_evaluation_or_unsettled,
            on="line",
        ),
        Mark(
            "eval-accumulation-told",
            2.0,
            "it grows in evaluation",
            "one batch gives back what it took unless it is kept",
            when=lambda _, e: observed.grows_in_evaluation(e),
        ),
        Mark("eval-accumulation-phase", 1.5, "in evaluation", "the failing phase", when=_evaluating),
        Mark("eval-accumulation-outside", 1.5, "outside the model", "an evaluation loop scores what it has collected", when=_outside_model),
        Mark(
            "eval-accumulation-cache",
            -4.0,
            "a key-value cache is being made for generation",
            "litgpt model.py set_kv_cache, build_kv_cache; torchtune modules/attention.py setup_cache: before anything is predicted",
            pattern=MAKES_CACHE,
            on="frame",
        ),
        Mark("eval-accumulation-large", 1.5, "larger than a batch", "the request against all that is allocated", when=_large),
        Mark(
            "eval-accumulation-epoch-end",
            1.5,
            "what each evaluation step returns is kept until the epoch ends",
            "pytorch_lightning before 2.0, loops/epoch/evaluation_epoch_loop.py: outputs are collected where the hook is defined",
            pattern=r"def (validation|test)_epoch_end\(\s*self\s*,\s*\w+",
        ),
        Mark("eval-accumulation-keeps", 1.0, "keeps logits", "TrainingArguments eval_accumulation_steps None, prediction_loss_only False", when=_keeps),
        Mark("eval-accumulation-model", -2.0, "inside the model", "Trainer.prediction_step runs the model before anything is collected", when=_inside_model),
        Mark(
            "eval-accumulation-append",
            2.0,
            "the script keeps every evaluation batch's outputs",
            "Lightning validation_step_outputs: a list that lives until the epoch's end",
            pattern=r"\b(val(idation)?|test|eval)\w*_(step_)?(outputs|preds|logits)\.append\(|\ball_(preds|logits|outputs)\.append\((?!.*(cpu|numpy|item))",
        ),
        Mark("eval-accumulation-passed", 2.0, "batches went through", "a batch that is too large fails as the first one", when=_batches_passed),
        Mark("eval-accumulation-first", -2.5, "in the first batch", "what is collected takes many batches", when=_first_batch),
        Mark("eval-accumulation-multiple", 2.5, "whole batches", "torch.cat of n batches asks for n times one batch", when=_multiple),
        Mark(
            "eval-accumulation-running",
            2.0,
            "an evaluation was running",
            "transformers Trainer.evaluation_loop logs '***** Running Evaluation *****' with 'Num examples'",
            pattern=r"\*\*\*\*\* Running (Evaluation|Prediction) \*\*\*\*\*",
            when=lambda _, e: None if in_phase(e, *TRAINING, "load", "save", "resume") else "",
        ),
        Mark(
            "eval-accumulation-due",
            2.2,
            "it is due at that step",
            "the interval of the settings against the step that the log shows last",
            when=lambda _, e: intervals.at(e, "eval", alone=True),
        ),
        Mark(
            "eval-accumulation-due-among",
            0.9,
            "it is due at that step, and so is another",
            "the interval of the settings against the step that the log shows last",
            when=lambda _, e: intervals.at(e, "eval", alone=False),
        ),
        Mark(
            "eval-accumulation-code",
            2.0,
            "the script keeps every evaluation batch on the card",
            "a tensor in a list stays where it was made",
            pattern=r"^code\.(keeps-on-card)=",
            on="key",
            when=lambda _, e: None if in_phase(e, *TRAINING, "load", "save", "resume") else "",
        ),
    ),
    form=_form,
    remedies=("eval-on-host", "smaller-eval-batch"),
    fires=(
        Example(
            "only with a metric",
            text="For evaluation it is giving CUDA out of memory with a batch of 4.\nIf I remove `compute_metrics` from the trainer, everything works.\n",
        ),
        Example(
            "predictions of all batches",
            text=trace(
                "transformers/trainer.py|evaluation_loop|preds_host = logits if preds_host is None else nested_concat(preds_host, logits)",
                "transformers/trainer_pt_utils.py|nested_concat|return torch_pad_and_concatenate(tensors, new_tensors)",
            )
            + oom("6.99 GiB", allocated=8.6, free=6.6, capacity=15.78),
        ),
    ),
    quiet=(Example("in the step", text=trace("torch/optim/adamw.py|_multi_tensor_adamw") + oom("512.00 MiB", allocated=76.5)),),
)
