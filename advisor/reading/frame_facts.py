"""What the frames of a traceback prove of the run: which framework, which sharding, which attention, which objective.

A frame in ``deepspeed/runtime/zero/stage3.py`` runs only under ZeRO-3; one in ``trl/trainer/dpo_trainer.py`` only in DPO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.evidence import Fact, Failure
from advisor.reading.merge import GUESS, Ranked
from advisor.reading.pattern import pattern as lazily

_PROVES: tuple[tuple[str, str, object], ...] = (
    (r"^trl/trainer/dpo_trainer\.py", "objective", "dpo"),
    (r"^trl/trainer/(?:grpo|online_dpo)\w*_trainer\.py", "objective", "grpo"),
    (r"^openrlhf/trainer/(?:ray/)?ppo_", "objective", "ppo"),
    (r"^swift/\S*/grpo_trainer\.py", "objective", "grpo"),
    (r"^trl/trainer/sft_trainer\.py", "objective", "sft"),
    (r"^trl/trainer/kto_trainer\.py", "objective", "kto"),
    (r"^trl/trainer/rloo_trainer\.py", "objective", "rloo"),
    (r"^trl/trainer/reward_trainer\.py", "objective", "reward"),
    (r"^trl/trainer/ppo\w*_trainer\.py", "objective", "ppo"),
    (r"^(?:axolotl)/", "framework.name", "axolotl"),
    (r"^llamafactory/", "framework.name", "llama-factory"),
    (r"^unsloth(?:_zoo)?/", "framework.name", "unsloth"),
    (r"^verl/", "framework.name", "verl"),
    (r"^openrlhf/", "framework.name", "openrlhf"),
    (r"^nemo_rl/", "framework.name", "nemo"),
    (r"^swift/", "framework.name", "ms-swift"),
    (r"^torchtune/", "framework.name", "torchtune"),
    (r"^torchtitan/", "framework.name", "torchtitan"),
    (r"^litgpt/", "framework.name", "litgpt"),
    (r"^llmfoundry/|^composer/", "framework.name", "llm-foundry"),
    (r"^trl/", "framework.name", "trl"),
    (r"^megatron/", "framework.name", "megatron-lm"),
    (r"^transformers/trainer\.py", "framework.name", "hf-trainer"),
    (r"^deepspeed/runtime/zero/(?:stage3|partition)", "parallel.strategy", "zero3"),
    (r"^deepspeed/runtime/zero/stage_?2\.py", "parallel.strategy", "zero2"),
    (r"^torch/distributed/fsdp/(?:_fully_shard|_composable)", "parallel.strategy", "fsdp2"),
    (r"^torch/distributed/fsdp/(?:flat_param|_flat_param|fully_sharded|_runtime_utils|_unshard|_state_dict_utils|_optim_utils)", "parallel.strategy", "fsdp1"),
    (
        r"^areal/engine/fsdp_engine\.py|^nemo_rl/models/policy/workers/dtensor_|(?:^|/)\w*fsdp2_(?:engine|workers?|strategy|trainer)\.py",
        "parallel.strategy",
        "fsdp2",
    ),  # AReaL, NeMo-RL: fully_shard
    (r"^torch/nn/parallel/distributed\.py", "parallel.strategy", "ddp"),
    (r"^transformers/integrations/sdpa_attention\.py", "activations.attention", "sdpa"),
    (r"^transformers/integrations/flash_attention\.py|^flash_attn/", "activations.attention", "flash-2"),
    (r"^peft/tuners/lora/", "method.kind", "lora"),
    (r"^deepspeed/runtime/hybrid_engine\.py", "rollout.engine", "hf"),  # the policy's own modules, with kernels for inference, in the trainer's process
    (r"^deepspeed/runtime/hybrid_engine\.py", "rollout.placement", "colocated"),
    (r"^transformers/quantizers/quantizer_bnb_4bit\.py", "method.base", "nf4"),  # or fp4, of the same size
    (r"^transformers/quantizers/quantizer_bnb_8bit\.py", "method.base", "int8"),
)
_COMPILED = tuple((lazily(pattern), field, value) for pattern, field, value in _PROVES)


_ENGINE = lazily(r"^(vllm|sglang)/")
_TRAINS = lazily(r"^(?:trl|unsloth(?:_zoo)?|llamafactory|swift|axolotl)/.*train|^transformers/trainer\.py")


def _engine_within(failure: Failure) -> Iterator[Ranked]:
    """An engine's frames inside a trainer's: it runs in the trainer's own process, on the same card."""
    trains = next((i for i, f in enumerate(failure.frames) if _TRAINS.search(f.file)), None)
    engine = next((f for f in failure.frames[trains:] if _ENGINE.search(f.file)), None) if trains is not None else None
    if trains is not None and engine is not None:
        why = f"{engine.file} is called by {failure.frames[trains].file}, in one process"
        name = engine.file.partition("/")[0]
        for field, value in (("rollout.engine", name), ("rollout.placement", "colocated")):
            yield Ranked(Fact(field, value, "inferred", engine.where, why, f"{engine.file}:{engine.function}"), GUESS)


def facts_of(failures: Sequence[Failure]) -> Iterator[Ranked]:
    """One fact a field, from the first failure's frames that prove it; the most specific framework first."""
    seen: set[str] = set()
    for failure in failures[:4]:
        if "rollout.engine" not in seen and (found := list(_engine_within(failure))):
            seen.update(ranked.fact.field for ranked in found)
            yield from found
        for pattern, field, value in _COMPILED:
            if field in seen:
                continue
            frame = next((f for f in failure.frames if pattern.search(f.file)), None)
            if frame is not None:
                seen.add(field)
                yield Ranked(Fact(field, value, "inferred", frame.where, f"a frame in {frame.file} runs only then", f"{frame.file}:{frame.function}"), GUESS)
