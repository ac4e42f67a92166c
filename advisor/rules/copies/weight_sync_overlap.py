"""Old weights, KV cache and freshly gathered weights are resident together at the hand-over."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.report import Doing
from advisor.rules import waking
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.rules.situation import in_phase, sharded
from advisor.run import Run


def _sync(run: Run, evidence: Evidence) -> str | None:
    return "the failure comes at the hand-over of the weights" if in_phase(evidence, "sync") and waking.hands_over(run, evidence) else None


_WHOLE = pattern(r"GatheredParameters\(\s*(?:list\()?[\w.]*model\w*\.parameters\(\)|summon_full_params\(")


def _gathered(run: Run, evidence: Evidence) -> str | None:
    """All parameters of a divided model are gathered on every rank at once, to generate with them."""
    if not sharded(run) or not in_phase(evidence, "rollout", "sync"):
        return None
    frame = next((f for f in evidence.frames if _WHOLE.search(f.code)), None)
    return f"every rank gathers the whole model to generate with it ({frame.where})" if frame is not None else None


def _form(run: Run, evidence: Evidence) -> Form | None:
    if _gathered(run, evidence) is None:
        return None
    why = "Generation in the training process needs whole layers: gathered all at once they are the whole model on every rank. Layer by layer is slow and fits."
    lines = {
        "trl": ("ds3_gather_for_generation=False   # gathers each layer as it is used: slower, and the model need not fit on a card",),
        "or an engine": ("use_vllm=True   # on cards of its own: it divides the model by its own tensor parallelism",),
    }
    doing = Doing("Generate without the whole model on each card", why, lines)
    return Form("The whole model is gathered on every rank to generate", ("separate-rollout", "tensor-parallel"), {"separate-rollout": doing})


RULE = Rule(
    id="weight-sync-overlap",
    tier="copies",
    title="Old and new weights (and the cache) are on the card together at the hand-over to the engine",
    cleared="The failure is not at the hand-over of weights to the engine.",
    prior=-1.0,
    explains=("sync",),
    marks=(
        Mark("weight-sync-phase", 2.5, "at the hand-over", "the failing phase", when=_sync),
        Mark(
            "weight-sync-gathered",
            5.0,
            "the whole model on every rank",
            "trl models/utils.py unwrap_model_for_generation: deepspeed.zero.GatheredParameters(model.parameters())",
            when=_gathered,
        ),
        Mark(
            "weight-sync-wake",
            3.5,
            "the engine wakes up beside what the trainer still holds",
            "vLLM device_allocator/cumem.py wake_up -> create_and_map; SGLang torch_memory_saver resume(tags=['weights'])",
            pattern=r"\bwake_up\b|create_and_map|cumem(?!\.py:sleep)|resume(_memory_occupation)?\(\s*tags?|torch_memory_saver",
            when=lambda run, evidence: "" if waking.hands_over(run, evidence) else None,
        ),
        Mark(
            "weight-sync-update",
            3.0,
            "the trainer pushes its weights into the engine",
            "verl fsdp_workers.rollout_mode / update_weights, TRL _move_model_to_vllm / sync_weights, OpenRLHF _broadcast_to_vllm; "
            "SkyRL broadcast_to_inference_engines / extract_weights, NeMo-RL broadcast_weights_for_collective, slime all_gather_param",
            pattern=r":(update_weights?\w*|_?sync_weights?\w*|_?gather_weights?\w*|_?move_model_to_vllm|_broadcast_to_vllm|rollout_mode|load_weights|push_weights|refit\w*|"
            r"broadcast_(?:weights|to)_\w+|_?(?:tp|ep|all)_gather_(?:param\w*|and_convert)|extract_weights)\b",
            on="frame",
        ),
    ),
    form=_form,
    remedies=("staged-wake-up", "rollout-fraction", "upgrade"),
    fires=(
        Example(
            "wake-up without room",
            job=job("Qwen/Qwen2.5-7B", objective="grpo", rollout="{engine: vllm, placement: colocated, memory_fraction: 0.5, sleep: level-2}"),
            text='  File "/usr/lib/python3/dist-packages/vllm/device_allocator/cumem.py", line 234, in wake_up\n    create_and_map(handle)\n'
            "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n",
        ),
    ),
    quiet=(
        Example(
            "the trainer comes back beside an engine that stays",
            job=job("Qwen/Qwen3-4B", objective="grpo", rollout="{engine: sglang, placement: colocated, memory_fraction: 0.8, sleep: none}"),
            text=trace("slime/backends/fsdp_utils/actor.py|wake_up|self.model.cuda()", "torch/nn/modules/module.py|convert|return t.to(")
            + oom("742.00 MiB", allocated=8.6, own=78.9),
        ),
        Example("no engine", job=job(objective="sft"), text=oom("512.00 MiB", allocated=76.5)),
    ),
)
