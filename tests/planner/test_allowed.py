"""What a plan may do, as it is asked for on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor import cli
from advisor.job import read_job
from advisor.planner.constraints import ADAPTERS_OF_FULL, NEEDS_LIBRARY, Constraints
from advisor.planner.measuring import Bench
from advisor.planning import plan
from advisor.run import Run, resolve

JOB = Path(__file__).resolve().parents[1] / "jobs" / "j4.yaml"


def planned(capsys: pytest.CaptureFixture[str], *said: str) -> dict[str, Any]:
    cli.main(["plan", str(JOB), "--gpu", "rtx4090-24gb", "--json", *said])
    return dict(json.loads(capsys.readouterr().out))


def names(found: dict[str, Any]) -> list[str]:
    return [step["technique"] for step in found["plan"]]


def test_no_library_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(names(planned(capsys))) & NEEDS_LIBRARY
    assert names(planned(capsys, "--no-new-dependency"))
    assert not set(names(planned(capsys, "--no-new-dependency"))) & NEEDS_LIBRARY


def test_only_what_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(step["exact"] for step in planned(capsys, "--keep-exact", "--set", "batch.micro_batch=16")["plan"])


def test_full_training_stays(capsys: pytest.CaptureFixture[str]) -> None:
    full = ("--set", "method.kind=full", "--set", "method.rank=null")
    free, kept = planned(capsys, *full[:2]), planned(capsys, *full[:2], "--keep-full")
    assert free["plan"]
    assert not set(names(kept)) & ADAPTERS_OF_FULL


def test_at_most_so_many_changes_on_the_cards_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(planned(capsys)["plan"]) > 1
    assert len(planned(capsys, "--most-changes", "1")["plan"]) <= 1
    found = planned(capsys, "--most-changes", "1", "--keep-hardware")
    assert all(step["tier"] != "hardware" for step in found["plan"])
    assert "that are allowed" in found["summary"]


def test_a_technique_that_is_out_of_the_question(capsys: pytest.CaptureFixture[str]) -> None:
    first = names(planned(capsys))[0]
    assert first not in names(planned(capsys, "--without", first))


@pytest.mark.parametrize(("without", "brings"), [("fused-linear-loss", "fused-kernels"), ("fused-kernels", "fused-linear-loss"), ("lora", "qlora")])
def test_nor_under_another_name(without: str, brings: str) -> None:
    start = run_of({"framework": {"name": "trl"}, "method": {"kind": "full"}, "activations": {"attention": "flash-2"}})
    free, bound = (Bench(start, lambda _: None, None, Constraints(exclude=frozenset(names))) for names in ((), (without,)))
    assert free.apply(brings, start) is not None
    assert bound.apply(brings, start) is None
    assert without in bound.refused[brings]
    made = plan(start, allow=Constraints(exclude=frozenset({without})))
    assert made.steps
    assert brings not in {step.technique for step in (*made.steps, *made.runner_up, *made.alternatives)}


def test_a_switch_of_its_own_stays_when_the_other_is_excluded() -> None:
    start = run_of({"framework": {"name": "axolotl"}, "method": {"kind": "full"}})
    bench = Bench(start, lambda _: None, None, Constraints(exclude=frozenset({"fused-linear-loss"})))
    after = bench.apply("fused-kernels", start)
    assert after is not None and after.job.activations.loss != "fused-linear"


def run_of(sections: dict[str, Any]) -> Run:
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "objective": "sft", "batch": {"micro_batch": 32, "seq_len": 4096}}
    return resolve(read_job({**job, "hardware": {"gpu": "a100-80gb", "gpus_per_node": 1}, **sections}))


def test_room_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(names(planned(capsys, "--margin", "10GiB"))) >= len(names(planned(capsys, "--margin", "0GiB")))


@pytest.mark.parametrize("said", [("--without", "nope"), ("--margin", "much"), ("--most-changes", "0"), ("--keep-exact", "--limits")])
def test_what_cannot_be_followed_is_refused(said: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(JOB), *said]) == 2
    assert capsys.readouterr().err


LINK = (
    "v=1&model.name=Qwen/Qwen2.5-7B&method.kind=lora&batch.micro_batch=16&batch.seq_len=4096&hardware.gpu=rtx4090-24gb&framework.name=trl"
    "&activations.attention=flash-2&error=gpu-memory&error.requested=9.79GiB&error.capacity=23.60GiB&error.allocated=15.83GiB&error.phase=loss"
)


def diagnosed(capsys: pytest.CaptureFixture[str], *said: str) -> dict[str, Any]:
    cli.main(["diagnose", *said, "--json"])
    return dict(json.loads(capsys.readouterr().out))


def test_a_diagnosis_keeps_to_them_too_as_option_or_in_its_link(capsys: pytest.CaptureFixture[str]) -> None:
    free = names(diagnosed(capsys, LINK))
    assert set(free) & NEEDS_LIBRARY
    kept = diagnosed(capsys, LINK, "--no-new-dependency")
    assert names(kept) and not set(names(kept)) & NEEDS_LIBRARY
    assert names(diagnosed(capsys, f"{LINK}&allow=keep:!(libraries)")) == names(kept)
    cli.main(["diagnose", LINK, "--no-new-dependency", "--link"])
    assert capsys.readouterr().out.strip().endswith("&allow=keep:!(libraries)")


def test_the_cause_s_own_remedy_is_no_step_where_it_is_excluded(capsys: pytest.CaptureFixture[str]) -> None:
    first = diagnosed(capsys, LINK)["findings"][0]["remedies"]
    without = [word for name in first for word in ("--without", name)]
    found = names(diagnosed(capsys, LINK, *without))
    assert found and not set(found) & set(first)
