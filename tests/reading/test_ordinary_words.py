"""Ordinary code and lines that look like a failure's words, a setting or a phase, and are none of it."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.rules.samples import oom, trace

FULL = oom("1.00 GiB", allocated=76.94, unallocated=1.1, free=0.3)


@pytest.mark.parametrize("caught", ["pyarrow.lib.ArrowMemoryError", "ray.exceptions.ObjectStoreFullError as full", "pyarrow.ArrowMemoryError: pass  #"])
def test_an_exception_that_a_script_catches_is_no_failure(caught: str) -> None:
    assert not read([("train.py", f"try:\n    step()\nexcept {caught}:\n    pass\n")]).evidence.failures


@pytest.mark.parametrize(
    ("line", "kind", "backend"),
    [
        ("MemoryError: Unable to allocate 1073741824 bytes", "host-memory", "cpu"),
        ("OSError: Unable to allocate 1048576 bytes", "not-memory", None),
        ("RuntimeError: [malloc_or_wait] Unable to allocate 40310000000 bytes.", "gpu-memory", "mps"),
        ("[malloc_or_wait] Unable to allocate 40310000000 bytes.", "gpu-memory", "mps"),
        ("pyarrow.lib.ArrowMemoryError: malloc of size 8589934592 failed", "host-memory", "cpu"),
    ],
)
def test_who_could_not_allocate_bytes(line: str, kind: str, backend: str | None) -> None:
    found = read([("error.txt", line + "\n")]).evidence.failures
    assert [(failure.kind, failure.backend) for failure in found] == [(kind, backend)]


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (("train.py|train_and_eval|loss.backward()", "torch/_tensor.py|backward|torch.autograd.backward("), "backward"),
        (("train.py|fit_with_validation|out = model(x)", "torch/nn/functional.py|linear|return F.linear(x)"), "forward"),
        (("train.py|zero_shot_eval|out = model(x)", "torch/nn/functional.py|linear|return F.linear(x)"), "eval"),
        (("train.py|train|best_model = copy.deepcopy(model)", "copy.py|deepcopy|y = copier(memo)"), "unknown"),
        (("train.py|main|teacher = copy.deepcopy(model)", "copy.py|deepcopy|y = copier(memo)"), "load"),
    ],
)
def test_a_name_decides_the_phase_only_where_it_means_it(frames: tuple[str, ...], phase: str) -> None:
    assert diagnose([("error.txt", trace("train.py|<module>|main(cfg)", *frames) + FULL)]).phase == phase


@pytest.mark.parametrize(
    ("line", "stated"),
    [("EP 3 loss 2.1 on 8 GPUs", None), ("confusion: TP 34 FP 2 on 2 GPUs", None), ("TP 4 on 8 GPUs", 4)],
)
def test_a_degree_alone_is_one_beside_cards_but_no_epoch_and_no_true_positives(line: str, stated: int | None) -> None:
    facts = {fact.field: fact.value for fact in read([("notes.txt", line + "\n")]).evidence.facts}
    assert facts.get("parallel.tensor", facts.get("parallel.expert")) == stated


@pytest.mark.parametrize(("count", "kinds"), [("0", []), ("3", ["host-memory"])])
def test_rays_count_of_workers_killed_for_memory(count: str, kinds: list[str]) -> None:
    line = f"(raylet) {count} Workers (tasks / actors) killed due to memory pressure (OOM), 2 Workers crashed due to other reasons at node (ID: ab)\n"
    report = diagnose([("error.txt", line)])
    assert [failure.kind for failure in report.evidence.failures] == kinds
    assert [finding.cause for finding in report.findings] == kinds


@pytest.mark.parametrize(("line", "stated"), [("# per_device_eval_batch_size: 1", None), ("per_device_eval_batch_size: 4", 4)])
def test_an_evaluation_that_is_commented_out_has_no_batch(line: str, stated: int | None) -> None:
    config = f"model_name_or_path: Qwen/Qwen3-4B\nstage: pt\nfinetuning_type: lora\n{line}\n"
    facts = {fact.field: fact.value for fact in read([("train.yaml", config)]).evidence.facts}
    assert facts.get("eval.micro_batch") == stated
