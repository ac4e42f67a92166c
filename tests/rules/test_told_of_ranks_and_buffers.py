"""What sentences and one frame say of whole copies, undivided gradients, the busiest expert and NCCL's buffers, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advisor.diagnosis import diagnose
from advisor.evidence import Evidence, Line
from advisor.rules import observed, told_ranks
from advisor.rules.samples import oom, trace


def _evidence(text: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"question.txt:{n}", line) for n, line in enumerate(text.split("\n"), 1)))


SAID = [
    (observed.whole_on_each, "With stage 3 the weights were loaded completely into every worker first.", True),
    (observed.whole_on_each, "All ranks fill up with the entire checkpoint and then it shrinks.", True),
    (observed.whole_on_each, "The dataset is fully loaded on each node before the epoch.", False),
    (observed.whole_on_each, "The model is not fully loaded onto each device, only a share of it.", False),
    (observed.rises_with_nccl, "Setting NCCL_BUFFSIZE=33554432 makes the GPU memory of each rank much higher.", True),
    (observed.rises_with_nccl, "The memory increases at step 3, so I set NCCL_DEBUG=INFO.", False),
    (told_ranks.first_alone, "horovodrun puts more memory on the first card than on the other three.", True),
    (told_ranks.first_alone, "The first epoch uses more memory than the others.", False),
    (told_ranks.first_alone, "Is there more memory on the first GPU than on the second?", False),
]


@pytest.mark.parametrize(("seen", "text", "says"), SAID)
def test_a_sentence_is_read_as_it_is_written(seen: Callable[[Evidence], str | None], text: str, says: bool) -> None:
    assert (seen(_evidence(text)) is not None) is says


def _causes(text: str, *frames: str, requested: str = "512.00 MiB") -> set[str]:
    report = diagnose([("question.txt", text + "\n"), ("error.txt", (trace(*frames) if frames else "") + oom(requested, allocated=76.0))])
    return {finding.cause for finding in report.findings[:2]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FSDP2: it trains without gradient accumulation, but with accumulate_grad_batches=8 it runs out of memory.", True),
        ("We use fully_shard, FSDP2. grad_accum_steps=1 peaks at 31 GB.\nWith grad_accum_steps=16 I get OOM at the second micro batch.", True),
        ("FSDP2: gradient_accumulation_steps=1 runs out of memory, and gradient_accumulation_steps=8 does too.", False),
        ("DDP: it trains without gradient accumulation, but with accumulate_grad_batches=8 it runs out of memory.", False),
        ("FSDP2. Does it run without gradient accumulation?\nWith gradient_accumulation_steps=4 it is OOM.", False),
    ],
)
def test_gradients_wait_undivided_where_only_accumulation_fails(text: str, says: bool) -> None:
    strategy = "ddp, replicate: 8" if text.startswith("DDP") else "fsdp2, shard: 8"
    report = diagnose([("job.yaml", f"version: 1\nparallel: {{strategy: {strategy}}}\n"), ("q.txt", text + "\n" + oom("512.00 MiB", allocated=76.0))])
    assert (bool(report.findings) and report.findings[0].cause == "gradients-unsharded") is says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("layer 3: num_tokens_per_expert: max=40960, avg=1024", True),
        ("layer 3: num_tokens_per_expert: max=1400, avg=1024", False),
        ("tokens per second max 40960 mean 1024", False),
    ],
)
def test_the_busiest_expert_is_held_against_the_mean(text: str, says: bool) -> None:
    assert ("expert-imbalance" in _causes(text)) is says


def test_a_buffer_as_long_as_the_busiest_expert() -> None:
    """DeepSpeed's gate without dropped tokens takes the largest count as every expert's capacity."""
    assert "expert-imbalance" in _causes("", "deepspeed/moe/gate.py|top1gating|new_capacity = torch.max(exp_counts).to(logits.device)", requested="9.00 GiB")
    assert "expert-imbalance" not in _causes("", "model/vocab.py|forward|counts = torch.max(word_counts).to(logits.device)", requested="9.00 GiB")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("It trains on a single GPU.\nWith DDP on two cards I get OOM.", True),
        ("With one card it works, but torchrun --nproc_per_node=4 is out of memory.", True),
        ("On one GPU it is out of memory.\nWith DDP it is OOM too.", False),
        ("Does it run on one GPU?\nWith multiple GPUs it is OOM.", False),
    ],
)
def test_one_card_runs_what_replicas_cannot(text: str, says: bool) -> None:
    assert (observed.one_card_runs(_evidence(text)) is not None) is says


def test_replicas_add_buckets_in_the_backward_pass_only() -> None:
    said = "It trains on a single GPU.\nWith DDP on two cards I get OOM.\n"
    job = "version: 1\nparallel: {strategy: ddp, replicate: 2}\n"
    for frame, says in (("torch/_tensor.py|backward|torch.autograd.backward(", True), ("train.py|main|model = AutoModel.from_pretrained(name)", False)):
        report = diagnose([("job.yaml", job), ("q.txt", said + trace(frame) + oom("1.00 GiB", allocated=76.0))])
        assert (bool(report.findings) and report.findings[0].cause == "communication-buffers") is says
