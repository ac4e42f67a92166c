"""DeepSpeed's engine on meta: against real ranks over gloo, by hand-worked sizes, and what is refused.

DeepSpeed is not among the packages that tests need (with it transformers, accelerate and peft take other ways): where it is missing, what runs it
is skipped. What legitimately differs from a real rank, beside what ``test_against_ranks`` names:

* flags and orders that ranks agree on are made from Python lists (``aten::lift_fresh``, one dimension of at most a hundred numbers);
* ``defragment`` moves stage 3's partitions by way of the host, where a CPU's already are: the buffer comes before they go, not after.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import ranks
from tests.simulation.test_against_ranks import FULL, LORA, Row, _job, _left

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]
needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed (DS_BUILD_OPS=0 pip install deepspeed)")

HALF = {"precision": {"weights": "bf16", "compute": "bf16", "mixed": "deepspeed", "master": "fp32"}}
WIDE = {"precision": {"weights": "fp32", "compute": "fp32", "mixed": "none"}}
TWICE = {"batch": {"micro_batch": 2, "seq_len": 32, "gradient_accumulation": 2}}
SMALL = {"bucket_elements": 20_000, "prefetch_elements": 8_000, "persistence_elements": 100, "max_live_elements": 60_000}


def _over(strategy: str, **sections: Any) -> dict[str, Any]:
    parallel = {"strategy": strategy, **({"replicate": 2} if strategy == "ddp" else {"shard": 2}), **SMALL}
    return {**HALF, "parallel": parallel, **sections}


JOBS: dict[str, dict[str, Any]] = {
    "stage 0": _over("ddp"),
    "stage 1": _over("zero1"),
    "stage 1, accumulation": _over("zero1", **TWICE),
    "stage 2": _over("zero2"),
    "stage 2, accumulation": _over("zero2", **TWICE),
    "stage 2 in fp32": _over("zero2", **WIDE),
    "stage 2, lora": _over("zero2", **LORA),
    "stage 3": _over("zero3"),
    "stage 3, accumulation": _over("zero3", **TWICE),
    "stage 3, checkpointing": _over("zero3", **FULL),
    "stage 3, lora": _over("zero3", **LORA),
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    """What rank 0 of two saw of each job."""
    folder = tmp_path_factory.mktemp("zero")
    (folder / "jobs.json").write_text(json.dumps({"2": {name: (_job(job), [0]) for name, job in JOBS.items()}}))
    command = [sys.executable, "-m", "tests.simulation.ranks", str(folder / "jobs.json"), str(folder)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=root, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[list[Any]]] = json.loads((folder / "of-2-0.json").read_text())
    return found


def _rows(rows: list[list[Any]]) -> list[Row]:
    """The rows without what is named above; those of the engine's start without their order."""
    told = [row for row in _left(rows) if not (row[2] == "aten::lift_fresh" and len(row[3]) == 1 and row[3][0] < 100)]
    flags = [row for row in told if row[1] > 1]
    return sorted(row for row in flags if row[5] == "build") + [row for row in flags if row[5] != "build"]


@needs_deepspeed
@pytest.mark.parametrize("name", JOBS)
def test_every_birth_and_death_is_that_of_a_real_rank(name: str, real: dict[str, list[list[Any]]]) -> None:
    from advisor.simulation.autocast import CUDA

    simulated = _rows(ranks.seen(_job(JOBS[name]), rank=0, autocast=CUDA))
    assert simulated == _rows(real[name])
    assert len(simulated) > 500


def _alive(run: Any, moment: str) -> dict[tuple[str, str], int]:
    """Requested bytes alive at a moment's largest instant, by part and name."""
    from advisor.simulation import timeline
    from advisor.simulation.step import STEPS, record

    recorder = record(run)
    point = timeline.peaks(recorder.events, recorder.storages, recorder.moments, STEPS - 1)[moment]
    found: dict[tuple[str, str], int] = {}
    for number in point.alive:
        storage = recorder.storages[number]
        key = (timeline.part_of(storage, 256), timeline.name_of(storage))
        found[key] = found.get(key, 0) + storage.requested
    return found


@needs_deepspeed
@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_stages_1_and_2_keep_whole_parameters_and_a_share_of_masters(strategy: str, tiny: Callable[..., Any]) -> None:
    """At the step: 2 bytes an element whole, 4 of masters and 8 of states divided over 4 ranks."""
    run = tiny("llama", **{**_over(strategy), "parallel": {"strategy": strategy, "shard": 4}, "hardware": {"gpu": "a100-80gb", "gpus_per_node": 4}})
    elements = run.architecture.parameters
    held = _alive(run, "step.update")
    assert held["weights", "flat 16-bit parameters"] == 2 * elements
    assert held["weights", "fp32 masters"] == elements
    assert held["optimizer", "flat partition exp_avg"] == held["optimizer", "flat partition exp_avg_sq"] == elements


@needs_deepspeed
def test_stage_3_divides_parameters_and_allocates_its_bucket_once(tiny: Callable[..., Any]) -> None:
    run = tiny("llama", **_over("zero3"))
    elements = run.architecture.parameters
    held = _alive(run, "step.update")
    assert held["weights", "partitions of the parameters"] == elements
    assert held["weights", "fp32 masters"] == 2 * elements
    assert held["communication", "reduce bucket"] == 2 * SMALL["bucket_elements"]
    assert held["gradients", "gradient partition"] == elements


@needs_deepspeed
def test_live_parameters_bound_what_is_gathered_ahead(tiny: Callable[..., Any]) -> None:
    """The limit holds back what is fetched before its use, not what stays for the next: then nothing is gathered together with what comes later."""
    from advisor.simulation.step import STEPS, record

    def largest(limit: int) -> int:
        parallel = {**_over("zero3")["parallel"], "max_live_elements": limit, "prefetch_elements": 50_000}
        found = record(tiny("llama", **{**_over("zero3"), "parallel": parallel})).storages.values()
        return max(s.requested for s in found if s.name == "all-gather output" and s.step == STEPS - 1)

    assert largest(1) == 2 * 256 * 64  # the embedding's table
    assert largest(10**9) > 2 * 256 * 64


@needs_deepspeed
def test_a_probe_answers_with_deepspeeds_version_and_no_scaling(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.answering import answer
    from advisor.simulation.request import request

    given = answer(request(tiny("llama", **_over("zero2"), framework={"name": "custom", "versions": {"deepspeed": "0.1.0"}})))
    assert "error" not in given
    assert any("deepspeed" in note and "0.1.0" in note for note in given["notes"])
    assert any("nothing scaled" in remark for remark in given["remarks"])
    assert {h["name"] for h in given["ledger"]["holdings"]} >= {"reduce bucket", "fp32 masters", "flat 16-bit parameters"}


def test_without_deepspeed_the_package_and_how_to_install_it_are_named(tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.simulation.request import CannotProbe
    from advisor.simulation.step import record

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(CannotProbe, match="pip install deepspeed"):
        record(tiny("llama", **_over("zero2")))


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"offload": {"optimizer": "cpu"}}, r"offload\.optimizer"),
        ({"optimizer": {"name": "adamw", "in_backward": True}}, "backward pass"),
        ({"method": {"kind": "lora", "rank": 4, "base": "nf4"}}, "quantised"),
    ],
)
def test_what_has_no_stand_in_is_refused_by_name(sections: dict[str, Any], named: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation import scope
    from advisor.simulation.request import CannotProbe

    with pytest.raises(CannotProbe, match=named):
        scope.check(tiny("llama", **_over("zero3", **sections)))


def test_the_child_is_told_the_sizes_that_the_estimate_takes(tiny: Callable[..., Any]) -> None:
    """ms-swift's configuration says "auto": hidden x hidden elements; alone, DeepSpeed's default."""
    from advisor.simulation.request import request

    bare = {**HALF, "parallel": {"strategy": "zero3", "shard": 2}}
    assert request(tiny("llama", **bare, framework={"name": "ms-swift"}))["job"]["parallel"]["bucket_elements"] == 64 * 64
    assert request(tiny("llama", **bare))["job"]["parallel"]["bucket_elements"] == 500_000_000
    assert request(tiny("llama", **_over("zero3")))["job"]["parallel"]["bucket_elements"] == SMALL["bucket_elements"]
