"""XLA's text of a program that does not fit: its planned sizes are no samples, its largest buffer says where, and PyTorch's lines are not for it."""

from __future__ import annotations

import re

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.render.quoted import quoted
from advisor.techniques import all_techniques
from advisor.techniques.of_torch import OF_TORCH
from advisor.units import GIB

TEXT = """jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6710886400 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    5.58GiB
              constant allocation:         0B
        maybe_live_out allocation:    5.58GiB
     preallocated temp allocation:   24.31GiB
  preallocated temp fragmentation:   24.75MiB (0.10%)
                 total allocation:   29.89GiB
              total fragmentation:    3.21MiB (0.01%)
Peak buffers:
\tBuffer 1:
\t\tSize: 6.25GiB
\t\tOperator: op_name="jit(train_step)/jit(main)/transpose(jvp(GPT))/log_softmax/sub" source_file="/srv/gpt/train.py" source_line=88
\t\tXLA Label: fusion
\t\tShape: f32[32,1024,51200]
\t\t==========================

\tBuffer 2:
\t\tSize: 3.00GiB
\t\tOperator: op_name="jit(train_step)/jit(main)/jvp(GPT)/h_3/attn/softmax" source_file="/srv/gpt/model.py" source_line=120
\t\tShape: f32[32,1024,24576]

nvidia-smi before start: NVIDIA RTX A5000 1MiB / 24564MiB
"""


def test_planned_sizes_are_no_samples_and_are_kept() -> None:
    evidence = read([("log.txt", TEXT)]).evidence
    failure = evidence.failures[0]
    details = dict(failure.details)
    assert not evidence.samples
    assert (details["program_total_bytes"], details["program_preallocated_temp_bytes"]) == (round(29.89 * GIB), round(24.31 * GIB))
    assert [size for size, _ in details["peak_buffers"]] == [round(6.25 * GIB), 3 * GIB]


def test_the_largest_buffer_says_where() -> None:
    failure = read([("log.txt", TEXT)]).evidence.failures[0]
    assert [(frame.file, frame.line, frame.function, frame.where) for frame in failure.frames] == [("train.py", 88, "sub", "log.txt:14")]
    assert failure.phase == "backward"
    assert read([("log.txt", TEXT.replace("transpose(jvp(GPT))", "jvp(GPT)"))]).evidence.failures[0].phase == "forward"


def test_a_program_of_xla_gets_its_own_lines_and_none_of_torch() -> None:
    report = diagnose([("log.txt", TEXT)])
    assert report.findings[0].cause == "logits"
    assert "driver-spill" not in [finding.cause for finding in report.findings]
    assert report.plan.steps and not {step.technique for step in report.plan.steps} & OF_TORCH
    lines = "\n".join(line for step in report.plan.steps for text in step.settings.values() for line in text)
    assert "jax." in lines and not re.search(r"torch|DataLoader|use_reentrant|CUDA", lines)


def test_what_is_pytorchs_is_a_technique() -> None:
    assert set(all_techniques()) >= OF_TORCH


def test_what_xla_planned_is_quoted() -> None:
    said = quoted(read([("log.txt", TEXT)]).evidence.failures[0], None)
    assert said is not None and said.startswith("XLA planned the program with 29.9 GiB, among them 5.6 GiB of arguments and 24.3 GiB of temporaries.")
    assert said.endswith("Its largest buffer is 6.2 GiB, of jit(train_step)/jit(main)/transpose(jvp(GPT))/log_softmax/sub.")
    bare = read([("log.txt", TEXT.splitlines(keepends=True)[0])]).evidence.failures[0]
    assert quoted(bare, None) is None
