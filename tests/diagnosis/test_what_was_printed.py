"""What the error prints is taken at its word: the card's total, and the phase in which it failed."""

from __future__ import annotations

from advisor.diagnosis import diagnose
from advisor.job import read_job
from advisor.planner.words import price
from advisor.render import terminal
from advisor.render.changing import cost
from advisor.render.paper import Paper
from advisor.render.quoted import quoted
from advisor.run import resolve
from advisor.units import GIB, show

JOB = """version: 1
model: {name: Qwen/Qwen2.5-7B-Instruct}
method: {kind: full}
objective: dpo
framework: {name: llama-factory}
parallel: {strategy: zero3, shard: 4}
batch: {micro_batch: 1, seq_len: 4096}
hardware: {gpu: a100-40gb, gpus_per_node: 4}
"""


def oom(requested: str, capacity: str = "39.39 GiB") -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 2 has a total capacity of {capacity} of which 840.06 MiB is free. "
        "Of the allocated memory 36.20 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated."
    )


def test_the_bar_has_the_total_that_the_error_prints() -> None:
    report = diagnose([("job.yaml", JOB), ("log.txt", oom("1.16 GiB"))])
    assert report.capacity_bytes is not None and abs(report.capacity_bytes - 39.39 * GIB) < 0.01 * GIB
    assert "error prints" in (report.capacity_why or "")


def test_a_total_of_another_card_is_no_refinement() -> None:
    report = diagnose([("job.yaml", JOB), ("log.txt", oom("1.16 GiB", "79.15 GiB"))])
    run = report.run
    assert run is not None and run.usable is not None
    larger = run.but(hardware={"gpu": "h200-141gb"})
    assert larger.usable is not None and larger.usable[0] > 100 * GIB


def test_a_plan_that_does_not_touch_the_likely_cause_says_why() -> None:
    report = diagnose([("job.yaml", JOB), ("log.txt", oom("1.16 GiB"))])
    assert report.findings[0].cause == "logits" and report.findings[0].confidence > 0.5
    assert not any(step.technique in report.findings[0].remedies for step in report.plan.steps)
    assert "require_logits" in report.plan.summary


def test_the_failing_phase_is_compared_with_the_estimates_own() -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 3, in step\n    optimizer.step()\n' + oom("1.16 GiB")
    report = diagnose([("job.yaml", JOB), ("log.txt", text)])
    failure, ledger = (report.evidence.failure if report.evidence is not None else None), report.ledger
    assert failure is not None and failure.phase == "step" and ledger is not None
    said = quoted(failure, ledger) or ""
    assert show(ledger.peak(("step",)).bytes) in said and "optimizer" in said
    assert ledger.peak().phase == "step" or show(ledger.peak().bytes) not in said


def test_one_gpu_is_not_all_of_them_and_what_stays_is_of_the_card_that_is_there() -> None:
    job = JOB.replace("zero3, shard: 4", "none").replace("gpus_per_node: 4", "gpus_per_node: 1").replace("a100-40gb", "t4-16gb").replace("dpo", "sft")
    report = diagnose([("job.yaml", job), ("log.txt", oom("1.16 GiB", "14.74 GiB"))])
    said = terminal.report(report, Paper())
    assert "all 1 GPUs" not in said
    assert "still needs" not in said


def test_one_price_in_two_places() -> None:
    for ratio in (0.99, 1.0, 1.012, 1.02, 1.3):
        assert ("no change" in cost(ratio)) == ("as long as before" in price(ratio))


def test_nothing_on_the_host_is_not_zero_bytes() -> None:
    from advisor.arithmetic import estimate

    run = resolve(read_job({"version": 1, "model": {"name": "meta-llama/Llama-3.2-1B"}, "batch": {"micro_batch": 1, "seq_len": 1024},
                            "hardware": {"gpu": "a100-80gb"}}))  # fmt: skip
    ledger = estimate(run)
    assert ledger.totals()["host"].high == 0
    said = terminal.estimate(run, ledger, "fits", "It fits.", Paper())
    assert "0 B" not in said.split("Totals")[1].split("What was assumed")[0] and "nothing" in said
