"""Activations are all kept."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import resting, snapshots, static_state
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import share_marks
from advisor.rules.situation import checkpoints, in_phase, weights_exceed
from advisor.run import Run

_TURNS_ON = pattern(r"^[^#\n]*\b(?:enable_gradient_checkpointing|gradient_checkpointing_enable)\(")


def _turned_on(evidence: Evidence) -> bool:
    """Whether the script calls what turns it on, on a module of whatever kind."""
    return any(_TURNS_ON.search(line.text) for line in evidence.lines)


def _off(run: Run, evidence: Evidence) -> str | None:
    fact = run.facts.get("activations.checkpointing")
    if run.job.activations.checkpointing != "none" or evidence.failure is None or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    if fact is None or fact.kind not in ("stated", "read", "default") or (fact.kind == "default" and _turned_on(evidence)):
        return None
    return f"gradient checkpointing is off ({fact.where or fact.why or fact.kind})"


def _said_off(run: Run, evidence: Evidence) -> str | None:
    fact = run.facts.get("activations.checkpointing")
    return f"it is written so ({fact.where})" if _off(run, evidence) and fact is not None and fact.kind in ("stated", "read") else None


def _not_turned_on(run: Run, evidence: Evidence) -> str | None:
    """A script or config is there, and nothing in it turns checkpointing on: transformers and peft leave it off."""
    fact = run.facts.get("activations.checkpointing")
    if run.job.activations.checkpointing != "none" or fact is None or fact.kind != "assumed" or not evidence.seen_keys or evidence.failure is None:
        return None
    if run.architecture is None and run.job.framework.name in (None, "custom") and not _has_switch(evidence):
        return None  # of a network that is not known, nor who trains it, it is not known either that there is such a switch
    if _turned_on(evidence):
        return None
    return None if _elsewhere(run, evidence) else "nothing in what was pasted turns gradient checkpointing on"


def _has_switch(evidence: Evidence) -> bool:
    """Whether a model of a library runs whose modules all can recompute (diffusers ModelMixin.enable_gradient_checkpointing)."""
    return any(frame.file.startswith("diffusers/") for frame in evidence.frames)


_COMMENTED = pattern(
    r"^\s*(?:#|//)\s*(?:[\w.]+\.)?(?:enable_gradient_checkpointing|gradient_checkpointing_enable)\(|"
    r"#\s*-{0,2}(?:gradient|activation)[-_]checkpointing\w*\s*(?:[:=]|$|\\)"
)


def _commented(_run: Run, evidence: Evidence) -> str | None:
    hit = next((line for line in evidence.lines if _COMMENTED.search(line.text)), None)
    return f"the line that turns it on is a comment ({hit.where})" if hit is not None else None


_ROLE = re.compile(r"(?<![a-z])(actor|critic|policy|value|reward|student|teacher)")
_SWITCH = re.compile(r"(?:gradient|activation)s?_?checkpointing\w*$|recompute\w*$", re.IGNORECASE)


def _role_off(_run: Run, evidence: Evidence) -> str | None:
    """Of a job of several models, the one that fails has its own switch, and it is off."""
    named = [m for frame in evidence.frames for m in _ROLE.findall(f"{frame.file}:{frame.function}".lower())]
    if not named:
        return None
    role = named[-1]  # the innermost frame that names one
    for where, key, value in evidence.seen_keys:
        if role in key.lower() and _SWITCH.search(key) and str(value).lower() in ("false", "none", "0"):
            return f"the {role} fails, and its own switch is off ({where}: {key}={value})"
    return None


def _on(run: Run, evidence: Evidence) -> str | None:
    if _role_off(run, evidence) is not None:
        return None
    fact = run.facts.get("activations.checkpointing")
    on = run.job.activations.checkpointing == "full" and fact is not None and fact.kind in ("stated", "read")
    return f"gradient checkpointing is on ({fact.where or 'stated'})" if on and fact is not None else None


def _elsewhere(_run: Run, evidence: Evidence) -> str | None:
    return (
        "the failure is not in the forward or backward pass"
        if in_phase(evidence, "load", "step", "save", "resume", "eval", "rollout", "sync", "merge")
        else None
    )


# what is placed, copied or collected around a block, or made from its inputs: nothing of it is kept less where blocks are recomputed
_AROUND = pattern(
    r"nn/parallel/(?:data_parallel|replicate|scatter_gather|_functions|comm)\.py:|accelerate/(?:hooks|data_loader)\.py:|utils/operations\.py:|utils/modeling\.py:set_module|"
    r"_utils/pin_memory\.py:|:_prepare_inputs?\b|load_balancing_loss|tuners/trainable_tokens/|:get_prompt\b|autoencoder\w*\.py:encode|\bvae\.encode\(|"
    r"\btext_encoder\w*\("
)
# the loss, scores and gathered outputs are made of what the blocks returned
_OF_OUTPUTS = pattern(
    r"(?:^|/)\w*loss(?:es)?\w*(?:/\w+)?\.py:|/similarity\.py:|:\w*(?:loss|scores?|logps?)\w*: |:_?gather_outputs?\b|AllGather\w*\.apply|:all_gather\w*: ",
    re.IGNORECASE,
)
_MODULE = pattern(r"^torch/nn/modules/(?!module\.py|loss\.py)")
_OF_BLOCK = pattern(r"modeling_\w+\.py:forward|checkpoint\.py:")


def _around(_run: Run, evidence: Evidence) -> str | None:
    """What fails stands outside every block of the trained model: behind the last frame of one comes a wrapper's, or there is none."""
    failure = evidence.failure
    if failure is None or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    described = [f"{f.file}:{f.function}: {f.code}" for f in failure.frames]
    at = next((n for n in range(len(described) - 1, -1, -1) if _AROUND.search(described[n])), None)
    if at is None or any(_OF_BLOCK.search(text) for text in described[at + 1 :]):
        at = next((n for n in range(len(described) - 1, -1, -1) if not described[n].startswith("torch/")), None)
        if at is None or not _OF_OUTPUTS.search(described[at]) or any(_MODULE.search(text) for text in described[at + 1 :]):
            return None
    return f"{failure.frames[at].where}: what fails is outside the blocks whose activations would be recomputed"


RULE = Rule(
    id="checkpointing-off",
    tier="batch",
    title="Every layer's activations are kept: gradient checkpointing is off",
    cleared="Gradient checkpointing is on, or activations are a small part of the peak.",
    prior=-0.9,
    explains=("forward", "loss", "backward"),
    marks=(
        Mark(
            "checkpointing-off-off",
            1.5,
            "off",
            "TrainingArguments.gradient_checkpointing is False by default",
            when=_off,
            rests_on=("activations.checkpointing",),
        ),
        Mark("checkpointing-off-role", 4.0, "off for the model that fails", "verl, OpenRLHF, NeMo-RL: a switch for each model", when=_role_off),
        Mark("checkpointing-off-commented", 2.0, "commented out", "what was pasted", when=_commented),
        Mark("checkpointing-off-said", 0.7, "written so", "the configuration", when=_said_off),
        Mark(
            "checkpointing-off-unset",
            1.0,
            "not turned on",
            "transformers PreTrainedModel.gradient_checkpointing_enable is never called",
            when=_not_turned_on,
            rests_on=("activations.checkpointing",),
        ),
        resting.mark("checkpointing-off", 1.5, "a step takes the card and gives it back"),
        Mark("checkpointing-off-on", -4.0, "on", "the configuration", when=_on),
        Mark("checkpointing-off-elsewhere", -2.5, "another phase", "the failing phase", when=_elsewhere),
        Mark(
            "checkpointing-off-block",
            1.2,
            "the failure comes inside a block's forward pass",
            "transformers modeling_*.py decoder layer, MLP, norm",
            pattern=r"modeling_\w+\.py:forward: .*(self\.(mlp|self_attn|attn|input_layernorm|post_attention_layernorm|act_fn|"
            r"[qkvo]_proj|gate_proj|up_proj|down_proj)\b|decoder_layer|layer_outputs|"
            r"variance\s*=|hidden_states)|peft/tuners/\w+/layer\.py:forward|bitsandbytes/autograd/_functions\.py:forward|"
            r"diffusers/models/\S*:forward|model\.py:forward: x = block",
            on="frame",
        ),
        Mark(
            "checkpointing-off-around",
            -2.5,
            "outside every block",
            "torch/nn/parallel DataParallel, accelerate hooks.py and data_loader.py, the router's auxiliary loss, encoders that prepare inputs",
            when=_around,
        ),
        Mark(
            "checkpointing-off-moving",
            -2.5,
            "a whole module is being moved",
            "torch/nn/modules/module.py _apply",
            pattern=r"nn/modules/module\.py:(cuda|_apply|convert)\b",
            on="frame",
        ),
        Mark("checkpointing-off-too-early", -3.0, "fails before", "weights are placed before any activation", when=weights_exceed),
        *static_state.against("checkpointing-off"),
        *share_marks("checkpointing-off", "activations", "attention", some=0.3, most=0.5, weights=(1.0, 1.0), noun="activations"),
        *snapshots.part_marks("checkpointing-off", "activations", unless=lambda run, _: checkpoints(run)),
    ),
    remedies=("gradient-checkpointing", "selective-checkpointing", "smaller-micro-batch"),
    fires=(
        Example(
            "LoRA without checkpointing",
            job=job(
                "mistralai/Mistral-7B-v0.1",
                method="{kind: lora, rank: 16, targets: all-linear}",
                precision="{weights: bf16}",
                batch="{micro_batch: 2, seq_len: 4096}",
                activations="{checkpointing: none, attention: flash-2}",
                hardware="{gpu: a100-40gb}",
            ),
            text=trace("transformers/models/mistral/modeling_mistral.py|forward|down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))")
            + oom("224.00 MiB", allocated=38.4, capacity=39.39),
        ),
    ),
    quiet=(
        Example(
            "checkpointing on", job=job(activations="{checkpointing: full}", batch="{micro_batch: 8, seq_len: 8192}"), text=oom("512.00 MiB", allocated=76.5)
        ),
    ),
)
