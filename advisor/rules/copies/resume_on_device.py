"""A checkpoint is loaded on the device beside the live state."""

from __future__ import annotations

import re

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import growth
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom, trace
from advisor.rules.situation import in_phase
from advisor.run import Run
from advisor.units import show


def _resuming(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes while a checkpoint is loaded" if in_phase(evidence, "resume") else None


def _device(run: Run, _evidence: Evidence) -> str | None:
    return "the checkpoint is read to the device" if run.job.resume is not None and run.job.resume.map == "device" else None


_RESUMED = pattern(
    r"--(?:resume|resume[-_]from(?:[-_]checkpoint)?|load[-_]checkpoint|load[-_]from|restore)[ =]+[^\s-]|\bresum(?:e|ed|ing) (?:training )?from\b", re.IGNORECASE
)


def _kept(_run: Run, evidence: Evidence) -> str | None:
    """The run is resumed, the state was read to where it was saved, and it fails in its first step: what was read is there still."""
    if not in_phase(evidence, "forward", "loss", "backward", "step") or (growth.last_step(evidence) or 0) > 1 or evidence.failure is None:
        return None
    resumed = next((line for line in evidence.lines if _RESUMED.search(line.text)), None)
    return f"the run is resumed ({resumed.where}) from a state that is read onto the card" if resumed is not None else None


_LOADED = pattern(
    r"\bafter\b[^\n]{0,80}(?:resum|restor|optim_state|\bload\w*\b[^\n]{0,30}(?:checkpoint|ckpt|state|optim)|(?:checkpoint|ckpt|state|optim\w*)[ _-]load)",
    re.IGNORECASE,
)
_STEPS = pattern(r"\b(?:batch|step|iter\w*|epoch)\W{0,3}\d|\b(?:first|fresh) (?:start|run)\b|\bfrom scratch\b", re.IGNORECASE)
MORE = 1.3  # times what the steps of the first start held: states that are whole again, or a state dict that is still there


def _more_after(_run: Run, evidence: Evidence) -> str | None:
    """After a checkpoint was loaded more is allocated than the steps of the same run held before."""
    steps = [
        s.allocated_bytes for s in evidence.samples if s.allocated_bytes and (s.step is not None or _STEPS.search(s.label)) and not _LOADED.search(s.label)
    ]
    if not steps:
        return None
    for sample in evidence.samples:
        if sample.allocated_bytes and _LOADED.search(sample.label) and sample.allocated_bytes >= MORE * max(steps):
            held = f"{show(sample.allocated_bytes)} are allocated after a checkpoint was loaded ({sample.where})"
            return f"{held}, where steps of the first start held {show(max(steps))}"
    return None


def _fault(run: Run, evidence: Evidence) -> Run | None:
    if run.job.resume is None and not in_phase(evidence, "resume"):
        return None
    return run.deviating(extra("weights", times=1, phases=("resume", "forward", "backward"), cause="resume-on-device"))


RULE = Rule(
    id="resume-on-device",
    tier="copies",
    title="A checkpoint is loaded on the card beside the live state",
    cleared="No checkpoint is loaded on the card.",
    prior=-1.0,
    marks=(
        Mark("resume-on-device-phase", 2.5, "while resuming", "the failing phase", when=_resuming),
        Mark(
            "resume-on-device-more-after",
            4.5,
            "more after resuming",
            "a resumed run holds what it held before it was stopped, unless what was read is still there, whole or as storages that views keep",
            when=_more_after,
        ),
        Mark("resume-on-device-map", 2.0, "read to the device", "torch.load's map_location: what it names is where tensors go", when=_device),
        Mark(
            "resume-on-device-load",
            2.5,
            "a saved state is restored to the device that it was saved from",
            "torch/serialization.py: without map_location each storage goes to its saved location (default_restore_location)",
            pattern=(
                r"serialization\.py:(restore_location|default_restore_location|_load|load|_cuda_deserialize|_deserialize)\b|torch\.load\([^)]*map_location\s*=\s*(device|['\"]cuda|"
                r"args\.device|f?['\"]cuda)|_utils\.py:_cuda"
            ),
        ),
        Mark(
            "resume-on-device-safetensors",
            2.5,
            "saved weights are read on the card while the model is there",
            "safetensors/torch.py load_file, load_model: a tensor on the device for each saved one; peft utils/save_and_load.py load_peft_weights reads to the "
            "first card unless it is told a device",
            pattern=r"safetensors/torch\.py:load_(?:file|model)|load_peft_weights",
            on="frame",
            when=lambda _, e: "" if in_phase(e, "resume") else None,
        ),
        Mark(
            "resume-on-device-optimizer",
            2.5,
            "the optimizer's saved state is loaded",
            "transformers Trainer._load_optimizer_and_scheduler; accelerate load_accelerator_state; torch set_optimizer_state_dict",
            pattern=(
                r"_load_optimizer_and_scheduler|load_accelerator_state|set_optimizer_state_dict|optimizer\.load_state_dict|(?<!re)load_optimizer_state|"
                r"(?:accelerate|transformers)/[^\n]*load_fsdp_optimizer|optim_state_dict_to_load|scatter_full_optim_state_dict|optim/optimizer\.py:_process_value"
            ),
            on="frame",
        ),
        Mark(
            "resume-on-device-loaded",
            2.0,
            "a checkpoint had just been loaded",
            "Megatron training/checkpointing.py prints 'successfully loaded checkpoint from ... at iteration n'",
            pattern=(
                r"successfully loaded checkpoint from|Resuming (training )?from|"
                r"resume_from_checkpoint['\"]?\s*[=:]\s*['\"]?(?:[Tt]rue\b|[\w.~-]*/[\w./-]+|checkpoint-\d)|"
                r"init_from\s*=\s*['\"]resume"
            ),
        ),
        Mark(
            "resume-on-device-kept",
            3.2,
            "what was read is there still",
            "torch/serialization.py: without map_location each storage goes to its saved location; a dict lives as long as a frame that names it",
            pattern=r"^code\.(loads-where-saved)=",
            on="key",
            when=_kept,
        ),
        Mark(
            "resume-on-device-code",
            1.8,
            "a checkpoint is read to where it was saved from",
            "torch/serialization.py: without map_location each storage goes to its saved location",
            pattern=r"^code\.(loads-where-saved)=",
            on="key",
            when=lambda _, e: "" if in_phase(e, "resume", "load", None) else None,
        ),
    ),
    fault=_fault,
    remedies=("resume-on-host", "detach-retained"),
    fires=(
        Example(
            "every rank restores to the card that it was saved from",
            text=trace(
                "accelerate/checkpointing.py|load_accelerator_state|models[i].load_state_dict(torch.load(input_model_file))",
                "torch/serialization.py|default_restore_location",
                "torch/_utils.py|_cuda|return new_type(self.size()).copy_(self, non_blocking)",
            )
            + oom("40.00 MiB", allocated=30.0, capacity=31.75),
        ),
    ),
    quiet=(
        Example(
            "every Trainer's call names the argument",
            text=trace(
                "llamafactory/train/sft/workflow.py|run_sft|train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)",
                "torch/nn/parallel/distributed.py|__init__|self._ddp_init_helper(",
            )
            + oom("55.03 GiB", allocated=55.0, capacity=79.3),
        ),
        Example(
            "the same run many steps later",
            text="$ python main.py --resume out/last.pt\nstate = torch.load(args.resume)\nstep 812 loss 0.31\n"
            + trace("net.py|forward|x = self.conv(x)")
            + oom("38.00 MiB", allocated=14.6, capacity=15.78),
        ),
        Example("in the step", text=trace("torch/optim/adamw.py|_multi_tensor_adamw") + oom("512.00 MiB", allocated=76.5)),
    ),
)
