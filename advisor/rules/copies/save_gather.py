"""Saving gathers or widens the full state on one rank."""

from __future__ import annotations

from advisor.deviation import extra
from advisor.evidence import Evidence
from advisor.rules import fingerprint, intervals
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import TRAINING, in_phase, sharded, weight_bytes
from advisor.run import Run


def _saving(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes while a checkpoint is written" if in_phase(evidence, "save") else None


def _training(_run: Run, evidence: Evidence) -> str | None:
    return "the failure comes in the training step" if in_phase(evidence, *TRAINING) else None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    whole, ranks = weight_bytes(run), max(1, run.job.parallel.shard or 1)
    if whole is None or not sharded(run) or ranks < 2:
        return None
    return run.deviating(extra("weights", bytes=round(whole * (1 - 1 / ranks)), dtype=run.job.precision.weights, phases=("save",), cause="save-gather"))


RULE = Rule(
    id="save-gather",
    tier="copies",
    title="Saving gathers the whole state on the card",
    cleared="The failure is not at a save.",
    prior=-1.0,
    explains=("save",),
    marks=(
        Mark("save-gather-phase", 2.0, "while saving", "the failing phase", when=_saving),
        Mark("save-gather-training", -2.0, "in training", "the failing phase", when=_training),
        Mark(
            "save-gather-consolidate",
            3.5,
            "shards are put together into the whole state",
            "DeepSpeed engine._zero3_consolidated_16bit_state_dict; torch FSDP _full_state_dict, summon_full_params; DTensor.full_tensor",
            pattern=(
                r"_zero3_consolidated|lightning_module_state_dict|_unshard_fsdp_state_params|consolidate_state_dict|get_parameter_state|consolidated_(16bit|fp16)|_full_state_dict|summon_full_params|full_tensor|FULL_STATE_DICT|"
                r"full_optim_state_dict|_gather_(full|orig)\w*state|(?<![a-z])_(full_)?(pre|post)_state_dict_hook|_common_unshard_(pre|post)_state_dict_hook"
            ),
            on="frame",
            when=lambda _, e: None if in_phase(e, "sync", "rollout", "load", "resume") else "",
        ),
        Mark(
            "save-gather-clone",
            3.5,
            "FSDP could not copy a gathered weight while the state dict was taken",
            "torch FSDP _state_dict_utils / fully_sharded_data_parallel state_dict hook: 'Failed to clone() tensor with name'",
            pattern=r"Failed to clone\(\) tensor with name",
            on="line",
        ),
        Mark(
            "save-gather-without",
            3.0,
            "without saving it goes through",
            "what disappears with the checkpoint callback is what saving holds: a full state dict is gathered on a card (FSDP's default state dict type)",
            pattern=(
                r"\b(?:disabl\w+|turn\w* off|without|remov\w+|skipp?\w*) (?:the )?"
                r"(?:model checkpointing|checkpoint callback|model saving|saving|ModelCheckpoint)\b"
                r"[^.!?\n]{0,80}\b(?:went away|goes away|gone|works?|worked|fine|no (?:more )?(?:errors?|OOMs?))\b"
            ),
        ),
        Mark(
            "save-gather-call",
            1.5,
            "the state dict of a sharded model is taken",
            "accelerate Accelerator.get_state_dict; DeepSpeed save_16bit_model; transformers Trainer._save_checkpoint",
            pattern=r"get_state_dict\(|save_(16bit|fp16)_model|_save_checkpoint|save_pretrained\(|save_model\(",
            on="frame",
        ),
        Mark(
            "save-gather-request",
            1.0,
            "the request is one whole weight",
            "full_tensor and GatheredParameters allocate a whole parameter each",
            when=lambda run, e: fingerprint.match(run, e, "weight", "vocabulary-weight", "expert-weight") if in_phase(e, "save") else None,
        ),
        Mark(
            "save-gather-due",
            2.5,
            "it is due at that step",
            "the interval of the settings against the step that the log shows last",
            when=lambda _, e: intervals.at(e, "save", alone=True),
        ),
        Mark(
            "save-gather-due-among",
            0.8,
            "it is due at that step, and so is another",
            "the interval of the settings against the step that the log shows last",
            when=lambda _, e: intervals.at(e, "save", alone=False),
        ),
    ),
    fault=_fault,
    remedies=("sharded-save",),
    fires=(
        Example(
            "ZeRO-3 consolidates on save",
            job=job("huggyllama/llama-30b", parallel="{strategy: zero3, shard: 2}", method="{kind: lora, rank: 8}"),
            text=trace(
                "transformers/trainer.py|_save_checkpoint|self.save_model(output_dir)",
                "deepspeed/runtime/engine.py|_zero3_consolidated_16bit_state_dict",
                "deepspeed/runtime/zero/partition_parameters.py|_allgather_params|flat_tensor = torch.empty(tensor_size)",
            )
            + oom("228.00 MiB", allocated=38.3, capacity=39.59),
        ),
        Example(
            "a script takes FSDP1's state dict, and only the hook around it is in the traceback",
            job=job("huggyllama/llama-7b", parallel="{strategy: fsdp1, shard: 8}"),
            text=trace("train.py|save|cpu_state = model.state_dict()", "torch/distributed/fsdp/_state_dict_utils.py|_post_state_dict_hook")
            + oom("502.00 MiB", allocated=36.8, capacity=39.59),
        ),
        Example(
            "FSDP's full state dict",
            job=job("huggyllama/llama-7b", parallel="{strategy: fsdp1, shard: 8}"),
            text=trace(
                "torch/nn/modules/module.py|state_dict|hook(self, prefix, keep_vars)",
                "torch/distributed/fsdp/_state_dict_utils.py|_full_pre_state_dict_hook|_common_unshard_pre_state_dict_hook(",
            )
            + oom("502.00 MiB", allocated=36.8, capacity=39.59),
        ),
    ),
    quiet=(Example("in the step", text=trace("torch/optim/adamw.py|_multi_tensor_adamw") + oom("512.00 MiB", allocated=76.5)),),
)
