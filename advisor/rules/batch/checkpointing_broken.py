"""Checkpointing is configured but has no effect."""

from __future__ import annotations

from advisor.deviation import ineffective
from advisor.evidence import Evidence
from advisor.rules import observed, tabled, tried
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import ADAPTER, checkpoints, in_phase
from advisor.run import Run

_EVAL_MODE = r"\b(?:model|unet|transformer|module|policy|net|backbone|dit)\w*\.training\W{1,4}False"


def _on(run: Run, _evidence: Evidence) -> bool:
    fact = run.facts.get("activations.checkpointing")
    return checkpoints(run) and fact is not None and fact.kind in ("stated", "read", "default")


def _frozen_inputs(run: Run, evidence: Evidence) -> str | None:
    risky = _on(run, evidence) and run.job.activations.reentrant is True and run.job.method.kind in ADAPTER
    return "reentrant checkpointing of a frozen base: a block whose input needs no gradient is not recomputed" if risky else None


def _switched(_run: Run, evidence: Evidence) -> str | None:
    """The script puts a checkpointed module into evaluation mode where a switch is set, and a config sets it."""
    for where, key, value in evidence.seen_keys:
        if key != "code.evaluates-where":
            continue
        switch, _, call = str(value).partition(": ")
        leaf = switch.rpartition(".")[2]
        for at, name, given in evidence.seen_keys:
            if name.rpartition(".")[2].replace("-", "_") == leaf and str(given).strip("'\"").lower() in ("true", "1"):
                return f"{at}: {leaf} is on, so {where} runs {call}: a block recomputes only where it is in training mode"
    return None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    return run.deviating(ineffective("activations.checkpointing", cause="checkpointing-broken")) if checkpoints(run) else None


def _tried(_run: Run, evidence: Evidence) -> str | None:
    """Both were tried, and it saves nothing."""
    both = tried.pair(evidence, tried.CHECKPOINTING)
    return both.says if both is not None and both.saves_nothing else None


_SWITCH = r"\w*(?:gradient|activation)s?_?checkpointing|(?:use_|enable_)?recompute"


def _tabled(_run: Run, evidence: Evidence) -> str | None:
    """A log has both, equal in everything else that it names, and it saves nothing."""
    both = tabled.pair(evidence, _SWITCH)
    return both.says if both is not None and both.saves_nothing else None


RULE = Rule(
    id="checkpointing-broken",
    tier="batch",
    title="Gradient checkpointing is configured but has no effect",
    cleared="Nothing shows that checkpointing is ineffective.",
    prior=-1.5,
    explains=("forward", "loss", "backward"),
    marks=(
        Mark("checkpointing-broken-tried", 3.5, "tried with and without", "the peak of the same run with and without it", when=_tried),
        Mark("checkpointing-broken-tabled", 5.0, "two runs of a log", "recomputing keeps less, so the peak of an otherwise equal run falls", when=_tabled),
        Mark(
            "checkpointing-broken-inputs",
            4.5,
            "no input of a checkpointed block needs a gradient",
            "torch/utils/checkpoint.py check_backward_validity: 'None of the inputs have requires_grad=True. Gradients will be None'",
            pattern=r"None of the inputs have requires_grad\s*=\s*True",
        ),
        Mark(
            "checkpointing-broken-eval",
            3.5,
            "the script enables checkpointing and then puts the module into evaluation mode",
            "transformers modeling_layers.py GradientCheckpointingLayer, diffusers before 0.32: self.gradient_checkpointing and self.training",
            pattern=r"^code\.(checkpoints-in-eval|checkpointing-unset)=",
            on="key",
        ),
        Mark(
            "checkpointing-broken-switch",
            3.5,
            "a switch puts the module into evaluation mode",
            "the same condition on self.training",
            when=_switched,
        ),
        Mark(
            "checkpointing-broken-mode",
            1.5,
            "the module is printed in evaluation mode while it is trained",
            "the same condition on self.training",
            pattern=_EVAL_MODE,
        ),
        Mark(
            "checkpointing-broken-mode-on",
            2.0,
            "it is switched on, and the module is printed in evaluation mode: the library's own condition does not hold",
            "diffusers unet_2d_blocks.py before 0.32, transformers modeling_layers.py: if self.gradient_checkpointing and self.training",
            pattern=_EVAL_MODE,
            when=lambda run, e: "" if _on(run, e) and in_phase(e, "forward", "loss", "backward") else None,
        ),
        Mark(
            "checkpointing-broken-left-out",
            3.5,
            "checkpointing was applied to no attention or no MLP of any layer",
            "nemo_automodel parallelizer: 'Applied submodule activation checkpointing to n layers: {...}' counts what it wrapped",
            pattern=r"activation checkpointing to \d+ layers: \{[^}]*'(attention|mlp)': 0\b",
        ),
        Mark(
            "checkpointing-broken-told",
            3.5,
            "it changes nothing",
            "torch/utils/checkpoint.py: what is recomputed is not kept, so the peak falls where it works",
            when=lambda _, e: observed.checkpointing_changes_nothing(e),
        ),
        Mark(
            "checkpointing-broken-grad",
            2.0,
            "the loss has no graph, as when checkpointed blocks get inputs without gradients",
            "torch/autograd: 'element 0 of tensors does not require grad and does not have a grad_fn'",
            pattern=r"element 0 of tensors does not require grad",
        ),
        Mark(
            "checkpointing-broken-says",
            3.5,
            "the library says that it does not checkpoint",
            "transformers, LLaMA-Factory: 'does not support gradient checkpointing'; TE and remote code print alike; unsloth models/_utils.py: "
            "'could not turn on gradient checkpointing (...); training without it'",
            pattern=(
                r"does not support gradient checkpointing|[Gg]radient checkpointing (is|was|will be) "
                r"(disabled|ignored|not (supported|applied|effective|active|used|working))|"
                r"[Cc]heckpointing .{0,30}(has no effect|not supported)|"
                r"could not (turn on|enable) (gradient|activation) checkpointing|\btraining without (gradient|activation) checkpointing\b"
            ),
        ),
        Mark(
            "checkpointing-broken-frozen",
            0.7,
            "frozen inputs",
            "torch/utils/checkpoint.py CheckpointFunction needs an input with requires_grad",
            when=_frozen_inputs,
        ),
        Mark(
            "checkpointing-broken-elsewhere",
            -2.0,
            "another phase",
            "the failing phase",
            when=lambda _, e: "the failure is not in the forward or backward pass" if in_phase(e, "load", "step", "save", "resume", "eval") else None,
        ),
    ),
    fault=_fault,
    remedies=("repair-checkpointing", "gradient-checkpointing"),
    fires=(
        Example(
            "a switch that changes nothing",
            text="Setting actor.model.enable_gradient_checkpointing=True does not change the peak memory of the update at all, and it is out of memory.\n",
        ),
        Example(
            "inputs without gradients",
            job=job(
                "meta-llama/Llama-2-7b-hf",
                method="{kind: lora, rank: 8}",
                activations="{checkpointing: full, reentrant: true}",
                batch="{micro_batch: 4, seq_len: 2048}",
            ),
            text="torch/utils/checkpoint.py:31: UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
            + trace("transformers/models/llama/modeling_llama.py|forward|hidden_states = self.input_layernorm(hidden_states)")
            + oom("128.00 MiB", allocated=23.0, capacity=23.69),
        ),
    ),
    quiet=(Example("no such warning", job=job(activations="{checkpointing: full}"), text=oom("512.00 MiB", allocated=76.5)),),
)
