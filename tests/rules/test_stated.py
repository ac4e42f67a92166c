"""What a reporter states of the mechanism counts; what is asked, denied, or printed alike for every failure does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advisor.diagnosis import diagnose
from advisor.evidence import Evidence, Line
from advisor.rules import engine, observed, stated


def _evidence(text: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"question.txt:{n}", line) for n, line in enumerate(text.split("\n"), 1)))


STATED = [
    ("other-process", "Another user's python process uses 60 GB of the card and mine is out of memory."),
    ("moved-before-sharding", "The trainer calls model.to(device) before FSDP wraps the model, so all 33B land on every GPU."),
    ("rollout-resident", "vLLM keeps its KV cache and weights on the GPU during the training step, so the backward pass is OOM."),
    ("gradients-unsharded", "With no_sync() during accumulation FSDP keeps the unsharded gradients on each GPU."),
    ("save-gather", "Saving the checkpoint gathers the full model on rank 0 and it goes OOM there."),
    ("merge-dequantizes", "Merging the LoRA into the 4-bit base dequantizes every layer to fp16."),
    ("framework-upcast", "accelerate's FSDP upcasts all parameters to float32 although I loaded in bf16."),
    ("fp8-not-smaller", "fp8 training does not use less memory than bf16."),
    ("fragmentation", "Reserved memory keeps growing while allocated stays the same."),
    ("graph-pools", "Each new input shape captures another CUDA graph and its private pool is never freed."),
    ("projection-temporary", "GaLore's SVD of the lm_head gradient asks for 120 GB."),
]


@pytest.mark.parametrize(("cause", "text"), STATED)
def test_a_stated_mechanism_is_found_and_comes_first(cause: str, text: str) -> None:
    assert stated.where(_evidence(text), cause) == "question.txt:1"
    assert diagnose([("question.txt", text)]).findings[0].cause == cause


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("fp8-not-smaller", "Is it normal that fp8 does not use less memory than bf16?"),
        ("fragmentation", "If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."),
        ("fragmentation", "The memory summary shows that this is not due to fragmentation, all of it is allocated."),
        ("save-gather", "How can I stop that saving gathers the full model on rank 0?"),
        ("default-fp32-load", "The weights are loaded in bfloat16 by default in this version."),
        ("default-fp32-load", "The model is loaded without dtype issues."),
        ("rollout-resident", "During the backward pass vLLM holds nothing, sleep mode frees the weights used for training."),
        ("needless-offload", "With offload_optimizer the card does not have free memory either."),
        ("optimizer-temporary", "The optimizer uses no temporary tensors of that size."),
        ("kernel-unsupported", "This GPU has no problem with bf16 at all."),
        ("kernel-unsupported", "My card can't run it without bf16."),
        ("retained-objects", "The old model still works fine on this machine."),
        ("driver-spill", "The shared memory (shm) is too small, so the loader is slow."),
    ],
)
def test_a_question_a_denial_and_the_constant_sentence_are_none(cause: str, text: str) -> None:
    assert stated.where(_evidence(text), cause) is None


def test_each_expression_belongs_to_a_rule_that_uses_it() -> None:
    used = {rule.id for rule in engine.all_rules() if any(mark.id == f"{rule.id}-in-words" for mark in rule.marks)}
    assert used == set(stated.SAYS)


OBSERVED = [
    (observed.checkpointing_changes_nothing, "Memory is the same with and without gradient checkpointing.", True),
    (observed.checkpointing_changes_nothing, "Gradient checkpointing does not reduce the memory at all.", True),
    (observed.checkpointing_changes_nothing, "Gradient checkpointing does not change the loss, the results stay the same.", False),
    (observed.worked_before, "The same script worked fine with an older version of the trainer.", True),
    (observed.worked_before, "The same script works if I use an older GPU and a batch of one.", False),
    (observed.whole_on_each, "Every rank holds the full model on its card.", True),
    (observed.whole_on_each, "With FSDP not every rank holds the full model.", False),
    (observed.grows, "The GPU memory increases with each training step.", True),
    (observed.grows, "The memory in use is logged each step; the loss increases.", False),
]


@pytest.mark.parametrize(("seen", "text", "says"), OBSERVED)
def test_an_observation_is_of_memory_and_as_it_is_written(seen: Callable[[Evidence], str | None], text: str, says: bool) -> None:
    assert (seen(_evidence(text)) is not None) is says
