"""From pasted texts to verdicts: what a report says, and that it says something calm whatever is pasted."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.diagnosis import diagnose, diagnose_reading
from advisor.evidence import Evidence
from advisor.job import read_job
from advisor.reading import read
from advisor.report import Report
from advisor.rules.samples import oom, trace

FITS = """
version: 1
model: {name: Qwen/Qwen2.5-0.5B}
method: {kind: lora, rank: 16, targets: all-linear, base: none}
objective: sft
precision: {weights: bf16, compute: bf16, mixed: none}
optimizer: {name: adamw}
batch: {micro_batch: 1, seq_len: 1024}
activations: {checkpointing: none, attention: flash-2}
parallel: {strategy: none}
hardware: {gpu: h100-80gb, gpus_per_node: 1}
"""


def _job(text: str, error: str = "") -> Report:
    reading = read([("error.txt", error)] if error else [])
    return diagnose_reading(replace(reading, job=read_job(text)))


@pytest.mark.parametrize("content", ["", "\x00\x01\x02\xff", "hello", "{", "[" * 5000, "a: &a [*a]"])
def test_nothing_that_can_be_read_is_said_calmly(content: str) -> None:
    report = diagnose([("thing.txt", content)])
    assert report.verdict in ("unreadable", "incomplete") and report.exit_code in (2, 3)
    assert report.sentence and not report.findings


def test_nothing_at_all() -> None:
    assert diagnose([]).verdict == "unreadable"


def test_a_fitting_job_is_told_that_it_fits() -> None:
    report = _job(FITS)
    assert report.verdict == "fits" and report.exit_code == 0
    assert all(f.tier == "spare" for f in report.findings)


def test_a_failure_is_a_failure_whatever_the_estimate_says() -> None:
    report = _job(FITS, trace("torch/nn/functional.py|cross_entropy") + oom("18.55 GiB", allocated=60.0, free=17.0))
    assert report.verdict == "ooms" and report.exit_code == 1


def test_without_a_batch_it_asks() -> None:
    report = _job("version: 1\nmodel: {name: meta-llama/Llama-3.1-8B}\nhardware: {gpu: rtx-4090}\n")
    assert report.verdict == "incomplete" and report.exit_code == 3
    assert report.next_question is not None


def test_a_wrong_shape_is_no_memory_error() -> None:
    text = trace("torch/nn/modules/linear.py|forward|return F.linear(input, self.weight, self.bias)")
    report = diagnose([("error.txt", text + "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x16 and 32x8)\n")])
    assert report.verdict == "not-memory" and not report.plan.steps


def test_the_constant_sentence_is_no_evidence() -> None:
    """Every error of torch since 2.2 names expandable segments; with little reserved but unallocated it is not fragmentation."""
    report = diagnose([("error.txt", oom("512.00 MiB", allocated=77.4, unallocated=0.5))])
    assert "fragmentation" not in [f.cause for f in report.findings]


def test_the_run_as_it_is_has_the_fault_in_it() -> None:
    job = FITS.replace("checkpointing: none", "checkpointing: full").replace("micro_batch: 1", "micro_batch: 32")
    warning = "torch/utils/checkpoint.py:31: UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
    text = warning + trace("transformers/models/qwen2/modeling_qwen2.py|forward|hidden_states = self.mlp(hidden_states)") + oom("608.00 MiB", allocated=77.5)
    report = _job(job, text)
    assert report.findings[0].cause == "checkpointing-broken"
    assert report.run is not None and any(d.cause == "checkpointing-broken" for d in report.run.deviations)
    assert report.as_written is not None and report.ledger is not None
    assert report.ledger.peak().bytes > report.as_written.peak().bytes
    assert report.findings[0].saves_bytes is not None and report.findings[0].saves_bytes > 0


def test_findings_and_what_became_of_the_other_rules_cover_all_rules_once() -> None:
    from advisor.rules.engine import all_rules

    report = diagnose([("error.txt", oom("512.00 MiB", allocated=77.4, unallocated=0.5))])
    seen = (
        [f.cause for f in report.findings] + [c for c, _ in report.cleared] + [c for c, _ in report.not_applicable] + [c.cause for c in report.could_not_tell]
    )
    assert sorted(seen) == sorted(r.id for r in all_rules())


def test_a_length_is_inferred_from_the_request_in_a_frame_that_makes_logits() -> None:
    job = "version: 1\nmodel: {name: meta-llama/Llama-3.1-8B}\nbatch: {micro_batch: 5}\n"
    text = trace("transformers/models/llama/modeling_llama.py|forward|logits = logits.float()") + oom("9.79 GiB", allocated=60.0, free=7.0)
    report = _job(job, text)
    assert report.run is not None and report.run.job.batch.seq_len == 4096
    assert report.run.facts["batch.seq_len"].kind == "inferred"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.floats(0.001, 200.0),
    st.floats(0.0, 200.0),
    st.floats(0.0, 60.0),
    st.floats(0.0, 80.0),
    st.sampled_from([8.0, 14.74, 23.65, 79.1, 178.4]),
    st.sampled_from(["forward", "backward", "none"]),
)
def test_any_counters_give_probabilities(requested: float, allocated: float, unallocated: float, free: float, capacity: float, where: str) -> None:
    head = {
        "forward": trace("transformers/models/llama/modeling_llama.py|forward"),
        "backward": trace("torch/autograd/graph.py|_engine_run_backward"),
        "none": "",
    }[where]
    report = diagnose([("error.txt", head + oom(f"{requested:.2f} GiB", allocated=allocated, unallocated=unallocated, free=free, capacity=capacity))])
    assert sum(f.confidence for f in report.findings) <= 1.0 + 1e-9
    assert report.verdict in ("ooms", "not-memory", "unreadable", "incomplete")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=400))
def test_any_text_gives_a_report(text: str) -> None:
    assert diagnose([("paste.txt", text)]).sentence


def test_evidence_alone_is_enough() -> None:
    """A link carries counters and marks, no text."""
    reading = read([])
    report = diagnose_reading(replace(reading, evidence=Evidence(marks=("logits-frame",)), job=read_job(FITS)))
    assert report.sentence
