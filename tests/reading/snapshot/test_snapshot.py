"""What a snapshot says: its peak, its places, its holes and pools, its failure; in every version's structure."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence
from advisor.reading import read
from advisor.reading.snapshot.__main__ import main
from advisor.reading.snapshot.process import summary_of
from advisor.reading.snapshot.summary import summarise
from reading.snapshot.building import ADAM, GIB, HOOK, LLAMA, LOAD, LOSS, MAIN, MIB, Recorded, dumped, snapshot, training_step

VERSIONS = ("2.0", "2.1", "now")


def lines(evidence: Evidence, start: str) -> list[str]:
    return [line.text for line in evidence.lines if line.text.startswith(start)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_structure_says_the_same(version: str, protocol: int) -> None:
    evidence = read([("snapshot.pickle", dumped(snapshot(training_step(), version=version), protocol))]).evidence
    (sample,) = evidence.samples
    # 4 x 400 + 2 x 300 + 3 x 500 + 1024 MiB lived together; then one layer and the loss were freed
    assert sample.peak_allocated_bytes == (1600 + 600 + 1500 + 1024) * MIB
    assert sample.allocated_bytes == (1600 + 600 + 1000) * MIB
    assert sample.reserved_bytes == sample.peak_reserved_bytes == 6 * GIB
    peak = lines(evidence, "snapshot peak:")
    assert "1.5 GiB from transformers/models/llama/modeling_llama.py:forward (activations, 3 blocks)" in peak[2]
    assert any("600 MiB from torch/optim/adamw.py:_init_group (optimizer, 2 blocks)" in text for text in peak)
    assert any("1.6 GiB from transformers/modeling_utils.py:from_pretrained (weights, 4 blocks)" in text for text in peak)


def test_no_person_is_named() -> None:
    evidence = read([("snapshot.pickle", dumped(snapshot(training_step())))]).evidence
    assert "anna" not in repr(evidence)


def test_its_failure_is_a_failure_with_counters_and_frames() -> None:
    (failure,) = read([("snapshot.pickle", dumped(snapshot(training_step())))]).evidence.failures
    assert (failure.requested_bytes, failure.free_bytes, failure.allocated_bytes) == (1100 * MIB, 300 * MIB, 3200 * MIB)
    assert failure.reserved_bytes == 6 * GIB
    assert [f.function for f in failure.frames] == ["main", "fixed_cross_entropy", "cross_entropy"]  # outermost first
    assert failure.phase == "loss"


def test_a_failure_that_a_log_prints_is_not_told_twice() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.07 GiB. GPU 0 has a total capacity of 6.50 GiB of which 300.00 MiB is free. Of the "
        "allocated memory 3.12 GiB is allocated by PyTorch, and 2.88 GiB is reserved by PyTorch but unallocated.\n"
    )
    evidence = read([("error.txt", text), ("snapshot.pickle", dumped(snapshot(training_step())))]).evidence
    assert [f.where for f in evidence.failures] == ["error.txt:1"]


def test_a_failure_that_was_survived_is_none() -> None:
    run = training_step()
    more = run.segment(GIB)
    for _ in range(300):
        run.alloc(more, MIB, LLAMA)
    evidence = read([("snapshot.pickle", dumped(snapshot(run)))]).evidence
    assert not evidence.failures
    assert lines(evidence, "snapshot oom:")


def test_what_lived_before_the_trace_counts() -> None:
    run = Recorded()
    segment = run.segment(2 * GIB)
    run.alloc(segment, 700 * MIB, LOAD, traced=False)
    early = run.alloc(segment, 200 * MIB, [], traced=False)
    made = run.alloc(segment, 100 * MIB, LLAMA)
    run.free(early)
    run.free(made)
    device = summarise(snapshot(run))["devices"][0]
    assert device["trace"]["peak"]["bytes"] == 1000 * MIB
    assert device["trace"]["peak"]["before_trace"] == 900 * MIB
    assert device["allocated"] == 700 * MIB


def test_holes_pools_and_waiting_blocks() -> None:
    run = Recorded()
    for _ in range(8):
        segment = run.segment(100 * MIB)
        run.alloc(segment, 40 * MIB, LLAMA)
    graphs = run.segment(512 * MIB, pool=(0, 1))
    run.alloc(graphs, 200 * MIB, LLAMA)
    other = run.segment(64 * MIB)
    run.free(run.alloc(other, 32 * MIB, LLAMA), pending=True)
    run.segment(256 * MIB)
    evidence = read([("s.pickle", dumped(snapshot(run)))]).evidence
    assert lines(evidence, "snapshot fragmentation") == [
        f"snapshot fragmentation: 824 MiB free in 10 holes of partly used segments, largest free block {256 * MIB} bytes"
    ]
    assert lines(evidence, "snapshot private pools") == [f"snapshot private pools: 512 MiB in 1 private pools, {312 * MIB} bytes of it free"]
    assert lines(evidence, "snapshot waiting")[0].startswith("snapshot waiting: 32 MiB")
    assert lines(evidence, "snapshot cache")[0].startswith("snapshot cache: 256 MiB")
    assert f"inactive_split_bytes.all.current: {824 * MIB}" in lines(evidence, "inactive_split")


def test_devices_are_told_apart() -> None:
    first, second = training_step(), Recorded(device=1)
    second.alloc(second.segment(GIB), 300 * MIB, LLAMA)
    evidence = read([("s.pickle", dumped(snapshot(first, second)))]).evidence
    assert [(s.where, s.allocated_bytes) for s in evidence.samples] == [("s.pickle:device 0", 3200 * MIB), ("s.pickle:device 1", 300 * MIB)]


def test_segments_alone_and_traces_alone() -> None:
    data = snapshot(training_step())
    (alone,) = read([("segments.pickle", dumped(data["segments"]))]).evidence.samples
    assert (alone.allocated_bytes, alone.peak_allocated_bytes) == (3200 * MIB, None)
    for form in (data["device_traces"], data["device_traces"][0]):
        (trace,) = read([("trace.pickle", dumped(form))]).evidence.samples
        assert (trace.allocated_bytes, trace.peak_allocated_bytes) == (None, 4724 * MIB)


def test_allocator_settings_are_facts() -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:4", "expandable_segments": True, "max_split_size": 128 * MIB}
    evidence = read([("s.pickle", dumped(snapshot(training_step(), settings=settings)))]).evidence
    facts = {f.field: f.value for f in evidence.facts if f.field.startswith("framework.allocator")}
    assert facts == {
        "framework.allocator.expandable_segments": True,
        "framework.allocator.roundup_power2_divisions": 4,
        "framework.allocator.max_split_size_mb": 128,
    }


def test_growth_between_two_snapshots_names_the_place() -> None:
    run = Recorded()
    segment = run.segment(4 * GIB)
    run.alloc(segment, GIB, LOAD)
    first = dumped(snapshot(run))
    for _ in range(5):
        run.alloc(segment, 100 * MIB, HOOK)
    second = dumped(snapshot(run))
    evidence = read([("after.pickle", second), ("before.pickle", first)]).evidence  # their events say which was earlier
    assert lines(evidence, "snapshot growth") == [
        "snapshot growth: +500 MiB in all from before.pickle to after.pickle",
        "snapshot growth: +500 MiB from callbacks.py:on_step_end (unattributed), before.pickle to after.pickle",
    ]


def test_ranks_are_not_compared() -> None:
    small, large = Recorded(), Recorded()
    small.alloc(small.segment(GIB), 100 * MIB, LOAD)
    large.alloc(large.segment(GIB), 900 * MIB, LOAD)
    evidence = read([("rank0.pickle", dumped(snapshot(small))), ("rank1.pickle", dumped(snapshot(large)))]).evidence
    assert [s.rank for s in evidence.samples] == [0, 1]
    assert not lines(evidence, "snapshot growth")


CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
PARAMETERS = [32000 * 1024] * 2 + [1024 * 1024] * 16 + [4096 * 1024] * 12


def _held(*widths: tuple[int, list[Any]]) -> bytes:
    run = Recorded()
    segment = run.segment(4 * GIB)
    for width, frames in widths:
        for elements in PARAMETERS:
            run.alloc(segment, elements * width, frames)
    return dumped(snapshot(run))


def test_weights_in_two_precisions_are_duplicates() -> None:
    evidence = read([("config.json", json.dumps(CONFIG)), ("s.pickle", _held((2, LOAD), (4, LOAD)))]).evidence
    assert any("match parameters at 2 bytes an element" in text and "100%" not in text for text in lines(evidence, "snapshot shapes"))
    assert "snapshot duplicates: the parameters are held at 4 bytes and at 2 bytes an element at once, outside the optimizer" in lines(
        evidence, "snapshot duplicates"
    )


def test_moments_and_gradients_are_no_duplicates() -> None:
    evidence = read([("config.json", json.dumps(CONFIG)), ("s.pickle", _held((2, LOAD), (2, []), (4, ADAM), (4, ADAM)))]).evidence
    assert lines(evidence, "snapshot shapes")
    assert not lines(evidence, "snapshot duplicates")


def test_the_same_width_twice_is_a_duplicate() -> None:
    evidence = read([("config.json", json.dumps(CONFIG)), ("s.pickle", _held((2, LOAD), (2, LOAD)))]).evidence
    (text,) = lines(evidence, "snapshot duplicates")
    assert text.endswith("beyond one block for each parameter")


def test_a_summary_says_what_the_pickle_said(tmp_path: Path) -> None:
    data = snapshot(training_step())
    (tmp_path / "s.pickle").write_bytes(dumped(data))
    summary = json.dumps(summarise(data))
    pickled = read([("s", tmp_path / "s.pickle")]).evidence
    for name, content in (("s", summary), ("s.json", json.dumps(data))):
        told = read([(name, content)]).evidence
        assert [line.text for line in told.lines] == [line.text for line in pickled.lines]
        assert {s.allocated_bytes for s in told.samples} == {s.allocated_bytes for s in pickled.samples}
    packed = read([("s.pickle.gz", gzip.compress(dumped(data)))]).evidence
    assert [line.text for line in packed.lines] == [line.text for line in pickled.lines]


def test_a_loss_within_the_model_is_logits() -> None:
    run = Recorded()
    run.alloc(run.segment(GIB), 100 * MIB, [*LOSS[:2], LLAMA[2], MAIN])
    assert summarise(snapshot(run))["devices"][0]["sites"][0]["part"] == "logits"


def test_the_command_writes_a_summary_that_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.pickle"
    file.write_bytes(dumped(snapshot(training_step())))
    assert main([str(file)]) == 0
    reading = read([("summary.json", capsys.readouterr().out)])
    assert reading.evidence.samples[0].allocated_bytes == 3200 * MIB
    assert reading.snapshots[0].summary["devices"][0]["map"][0]["holes"] > 0
    (tmp_path / "bad.pickle").write_bytes(b"\x80\x04cos\nsystem\n.")
    assert main([str(tmp_path / "bad.pickle")]) == 2
    assert "os.system" in capsys.readouterr().err


def test_an_upload_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dumped(snapshot(training_step()), 3)
    first = summary_of(data)
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert summary_of(data) == first
