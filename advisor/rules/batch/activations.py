"""With everything in place, batch times sequence is too large."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules import counters, fingerprint, resting, snapshots, static_state
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.shares import guessed, share_marks
from advisor.rules.situation import checkpoints, in_phase, nearly_full, smallest_batch, weights_exceed
from advisor.run import Run
from advisor.units import show


def _checkpointed(run: Run, evidence: Evidence) -> str | None:
    return "checkpointing is on already, and the batch is still too large" if checkpoints(run) and in_phase(evidence, "forward", "loss", "backward") else None


def _off(run: Run, evidence: Evidence) -> str | None:
    off = run.job.activations.checkpointing == "none" and (evidence.seen_keys or not guessed(run, "activations.checkpointing"))
    return "checkpointing is off: that comes first" if off else None


def _request(run: Run, evidence: Evidence) -> str | None:
    return fingerprint.match(run, evidence, "mlp", "hidden") if in_phase(evidence, "forward", "loss", "backward", None) else None


def _giant(_run: Run, evidence: Evidence) -> str | None:
    """One tensor larger than the card, asked for while little is held: only the batch's own dimensions make such tensors."""
    figures = counters.of(evidence)
    if figures.requested is None or figures.capacity is None or figures.allocated is None or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    if not figures.capacity < figures.requested < 100 * figures.capacity or figures.allocated > 0.5 * figures.capacity:
        return None
    return f"one tensor of {show(figures.requested)} is asked for, more than the card, with {show(figures.allocated)} held"


def _rows(run: Run, evidence: Evidence) -> str | None:
    """The model is not known, and the request is a whole number of bytes for each token: hidden states of a usual width."""
    return fingerprint.rows(run, evidence) if in_phase(evidence, "forward", "loss", "backward", None) else None


HALVED_TWICE = 4  # samples: of fewer there is little to take away


def _batch(run: Run, evidence: Evidence) -> str | None:
    """Of a model that is not known nothing can be counted; what its run was given is a batch, and the batch is what most such runs have too much of."""
    fact = run.facts.get("batch.micro_batch")
    if run.architecture is not None or fact is None or fact.kind not in ("stated", "read") or (run.job.batch.micro_batch or 1) < HALVED_TWICE:
        return None
    if evidence.failure is None or evidence.failure.kind != "gpu-memory" or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    return f"a batch of {run.job.batch.micro_batch} samples goes in at once"


def _full(_run: Run, evidence: Evidence) -> str | None:
    full = nearly_full(evidence) and in_phase(evidence, "forward", "backward", None)
    return "PyTorch itself holds nine tenths of the card or more" if full else None


def _elsewhere(_run: Run, evidence: Evidence) -> str | None:
    return "the failure is not in the forward or backward pass" if in_phase(evidence, "load", "step", "save", "resume", "rollout", "sync", "merge") else None


RULE = Rule(
    id="activations",
    tier="batch",
    title="Micro batch times sequence length is too large for the card",
    cleared="Activations are a small part of the peak.",
    prior=-0.9,
    needs=("model.name", "batch.micro_batch", "batch.seq_len"),
    explains=("forward", "loss", "backward"),
    marks=(
        Mark("activations-checkpointed", 0.5, "checkpointed already", "the configuration", when=_checkpointed, rests_on=("activations.checkpointing",)),
        Mark("activations-unchecked", -0.7, "not checkpointed", "the configuration", when=_off, rests_on=("activations.checkpointing",)),
        Mark("activations-request", 1.2, "the request is an activation", "hidden states and MLP projections of the micro batch", when=_request),
        Mark("activations-rows", 1.5, "a row for each token", "an activation has micro_batch x seq_len rows", when=_rows),
        Mark("activations-giant", 2.0, "one tensor larger than the card", "an activation grows with batch and length, weights and states do not", when=_giant),
        resting.mark("activations", 1.5, "a step takes the card and gives it back"),
        Mark("activations-batch", 0.8, "a batch", "activations grow with the samples that go in at once", when=_batch),
        Mark("activations-full", 0.5, "the card is full of tensors", "allocated against capacity", when=_full),
        Mark("activations-elsewhere", -2.5, "another phase", "the failing phase", when=_elsewhere),
        Mark(
            "activations-block",
            0.8,
            "the failure comes inside a block's forward pass, or while it is recomputed",
            "transformers modeling_*.py; torch/utils/checkpoint.py recompute",
            pattern=r"modeling_\w+\.py:forward|utils/checkpoint\.py|self\.(mlp|act_fn|gate_proj|up_proj|down_proj)\(",
            on="frame",
        ),
        Mark(
            "activations-inputs",
            1.5,
            "the batch itself is being placed, or encoded for the model that is trained",
            "accelerate data_loader.py send_to_device, transformers Trainer._prepare_input; diffusers autoencoders' encode before the denoiser runs",
            pattern=r"utils/operations\.py:send_to_device|:_prepare_inputs?: return data\.to|autoencoder\w*\.py:encode|\bvae\.encode\(|:get_prompt\b",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "forward", "loss", None) else None,
        ),
        Mark(
            "activations-moving",
            -2.5,
            "a whole module is being moved",
            "torch/nn/modules/module.py _apply",
            pattern=r"nn/modules/module\.py:(cuda|_apply|convert)\b",
            on="frame",
        ),
        Mark("activations-too-early", -3.0, "fails before", "weights are placed before any activation", when=weights_exceed),
        Mark("activations-least", -1.0, "nothing left to shrink", "the configuration", when=lambda run, _: smallest_batch(run)),
        *static_state.against("activations"),
        *share_marks("activations", "activations", "attention", some=0.3, most=0.5, weights=(0.9, 1.0), noun="activations"),
        *snapshots.part_marks("activations", "activations", unless=lambda run, _: run.job.activations.checkpointing == "none"),
    ),
    remedies=("smaller-micro-batch", "shorter-sequence", "gradient-checkpointing", "context-parallel", "offload-activations"),
    fires=(
        Example(
            "a long sequence with checkpointing",
            job=job(
                "Qwen/Qwen2.5-7B-Instruct",
                method="{kind: lora, rank: 8}",
                precision="{weights: bf16}",
                batch="{micro_batch: 8, seq_len: 32768}",
                activations="{checkpointing: full, attention: flash-2, loss: fused-linear}",
                hardware="{gpu: a100-80gb}",
            ),
            text=trace(
                "torch/utils/checkpoint.py|backward",
                "transformers/models/qwen2/modeling_qwen2.py|forward|down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))",
            )
            + oom("9.25 GiB", allocated=74.0, free=4.0),
        ),
    ),
    quiet=(Example("while loading", text=trace("transformers/modeling_utils.py|from_pretrained") + oom("448.00 MiB", allocated=78.0)),),
)
