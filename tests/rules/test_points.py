"""Data points of a setting: tables and lines that relate a batch or a length to memory, and what only looks like one."""

from __future__ import annotations

import pytest

from advisor.deviation import ineffective
from advisor.diagnosis import diagnose
from advisor.evidence import Evidence, Line
from advisor.job import read_job
from advisor.rules import slopes
from advisor.rules.points import series
from advisor.rules.samples import job, oom
from advisor.run import Run, resolve
from advisor.units import GIB


def _evidence(text: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"q.txt:{n}", line) for n, line in enumerate(text.split("\n"), 1)))


def _found(text: str) -> list[tuple[str, list[tuple[int, float]]]]:
    return [(found.setting, [(p.value, round(p.bytes / GIB, 1)) for p in found.points]) for found in series(_evidence(text))]


@pytest.mark.parametrize(
    "text",
    [
        "bs=1: 21.3 GB, bs=2: 30.1 GB, bs=8: OOM",
        "with batch size 1 it takes 21.3 GiB and with batch size 2 30.1 GiB",
        "| batch size | peak (GB) |\n|---|---|\n| 1 | 21.3 |\n| 2 | 30.1 |\n| 4 | OOM |",
        "| batch | time | peak memory |\n| --- | --- | --- |\n| 1 | 0.4 | 21.3 GB |\n| 2 | 0.7 | 30.1 GB |",
        "bsz  peak GiB  tok/s\n1    21.3      4000\n2    30.1      5200",
        "per_device_train_batch_size=1 -> 21.3 GB\nper_device_train_batch_size=2 -> 30.1 GB",
    ],
    ids=["inline", "sentence", "markdown", "unit in the cell", "columns", "lines"],
)
def test_pairs_are_read(text: str) -> None:
    assert _found(text) == [("batch.micro_batch", [(1, 21.3), (2, 30.1)])]


@pytest.mark.parametrize(
    "text",
    [
        "seq_len 2048: 20.0 GB\nseq_len 4096: 31.5 GB",
        "| seq len | VRAM (GB) |\n|:--|--:|\n| 2k | 20.0 |\n| 4k | 31.5 |",
        "seq=2,048: 20.0 GB; seq=4,096: 31.5 GB",
    ],
)
def test_lengths_are_read(text: str) -> None:
    assert _found(text) == [("batch.seq_len", [(2048, 20.0), (4096, 31.5)])]


@pytest.mark.parametrize(
    "text",
    [
        "batch 1: 10.2 GB\nbatch 2: 10.9 GB\nbatch 3: 11.5 GB",
        "| batch | memory (GB) |\n|---|---|\n| 1 | 10.2 |\n| 2 | 10.9 |\n| 3 | 11.5 |",
        "bs=1 lr=0.1: 21.3 GB\nbs=2 lr=0.2: 30.1 GB",
        "bs=1 seq=2048: 21.3 GB, bs=2 seq=4096: 60.1 GB",
        "bs=1: 21.3 GB\nbs=1: 24.9 GB\nbs=2: 30.1 GB",
        "| batch size | rank | peak (GB) |\n|---|---|---|\n| 1 | 8 | 21.3 |\n| 2 | 64 | 30.1 |",
        "bs=1 on an 80 GB card, bs=2 on a 24 GB card",
        "bs=1 would need 21.3 GB, bs=2 would need 30.1 GB",
    ],
    ids=["batches go by", "rows go by", "another setting", "two settings", "two figures", "another column", "cards", "expected"],
)
def test_what_is_no_series(text: str) -> None:
    assert _found(text) == []


def _run(checkpointing: str) -> Run:
    sections = job(method="{kind: lora, rank: 8}", batch="{micro_batch: 1, seq_len: 4096}", activations=f"{{checkpointing: {checkpointing}}}")
    return resolve(read_job(sections))


def test_a_rise_tells_a_fault_from_the_run_as_written() -> None:
    """Memory that rises with the batch as without recomputing: its switch does nothing. As with it: the fault loses by the same sum."""
    run = _run("full")
    broken = run.deviating(ineffective("activations.checkpointing", cause="checkpointing-broken"))
    shape = series(_evidence("bs=1: 20 GB, bs=4: 21 GB"))[0]
    with_it, without = slopes.rise(run, shape), slopes.rise(broken, shape)
    assert with_it is not None and without is not None and without > with_it + GIB
    told = {}
    for name, rise in (("with", with_it), ("without", without)):
        text = f"bs=1: 20 GB, bs=4: {20 + rise / GIB:.2f} GB"
        told[name] = [says.weight for says in slopes.told("checkpointing-broken", broken, run, _evidence(text))]
    assert told["without"][0] > 1 and told["with"][0] < -1


def test_no_series_says_nothing() -> None:
    run = _run("full")
    assert not list(slopes.told("any", run.deviating(), run, _evidence("bs=1: 20 GB")))


def test_a_table_moves_the_cause_by_its_rise_alone() -> None:
    """The same failure and settings; only the figures of a table differ."""
    run = _run("full")
    broken = run.deviating(ineffective("activations.checkpointing", cause="checkpointing-broken"))
    shape = series(_evidence("bs=1: 20 GB, bs=4: 21 GB"))[0]
    config = (
        "base_model: meta-llama/Llama-3.1-8B\nadapter: lora\nlora_r: 8\nsequence_len: 4096\nmicro_batch_size: 1\n"
        "gradient_checkpointing: true\nbf16: true\noptimizer: adamw_torch\nlora_target_linear: true\n"
    )
    said: dict[bool, float] = {}
    for works, of in ((True, run), (False, broken)):
        rise = slopes.rise(of, shape)
        assert rise is not None
        table = f"| batch size | peak (GB) |\n|---|---|\n| 1 | 30.0 |\n| 4 | {30 + rise / GIB:.1f} |\n| 8 | OOM |\n"
        found = diagnose([("axolotl.yaml", config.encode()), ("question.txt", (table + oom("512.00 MiB", allocated=76.5)).encode())]).findings
        said[works] = sum(finding.confidence for finding in found if finding.cause == "checkpointing-broken")
    assert said[False] > said[True] + 0.2


@pytest.mark.parametrize(
    "text",
    [
        "LoRA bs=1 -> 20 GB\nfull fine-tuning bs=2 -> 76 GB",
        "Llama-7B, bs=1: 20 GB\nwith gradient checkpointing bs=4: 70 GB",
        "with gradient checkpointing bs=2: 19 GB\nwithout it bs=4: 60 GB",
    ],
)
def test_runs_that_differ_in_words_are_no_series(text: str) -> None:
    assert _found(text) == []
