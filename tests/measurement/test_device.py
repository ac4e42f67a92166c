"""What runs on a card, on a fake one: the order of torch.cuda's calls, the ledger of its counters, the card and its driver by name."""

import os
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.torch

from advisor.measurement import machine, ranks, software, steps  # noqa: E402
from advisor.measurement.counting import CudaCounter  # noqa: E402
from advisor.measurement.watching import emulated  # noqa: E402


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    peaks = iter([700, 900, 800, 650, 950, 790])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: seen.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: (seen.append("read"), next(peaks))[1])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 1200)
    return seen


def test_each_phase_is_counted_alone_and_the_largest_of_the_steps_stays(calls: list[str]) -> None:
    counter = CudaCounter()
    for _ in range(2):
        with counter.step(100):
            for phase in ("forward", "backward", "step"):
                with counter.phase(phase):
                    calls.append(phase)
    assert calls[:5] == ["synchronize", "reset", "forward", "synchronize", "read"]  # kernels of the phase before are over, and so are its own
    assert counter.peaks == {"forward": 700, "backward": 950, "step": 800}
    held: Any = {"forward": {"weights": (300, "bf16")}, "backward": {"weights": (300, "bf16")}, "step": {"weights": (300, "bf16"), "optimizer": (400, "fp32")}}
    ledger = steps._ledger(counter, held, "cuda", ("a note",))
    assert ledger.peak().bytes == 950 and ledger.notes == ("a note",)  # no word of a stand-in
    parts = {h.part: h.bytes for h in ledger.holdings if "measured.backward" in h.moments}
    assert parts == {"weights": 300, "unattributed": 650, "allocator": 250}


def test_the_card_is_the_catalogues_and_versions_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    seen = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=85_045_477_376)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: seen)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:00:00 UTC 2026\nGCC version: 13\n")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
    assert machine.described("cuda") == {"device": seen.name, "card": "h100-80gb", "driver": "570.124.06", "cuda": "12.8"}
    seen.name, seen.total_memory = "A card that nobody knows", 10 * 2**30
    assert machine.described("cuda")["card"] == {"name": seen.name, "memory_gib": 10.0}


def test_a_rank_takes_its_card_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "set_device", order.append)
    monkeypatch.setattr(ranks.dist, "init_process_group", order.append)
    monkeypatch.setattr(ranks.dist, "get_rank", lambda: 1)
    assert ranks.begin("cuda") == 1
    assert order == [1, "nccl"]


def test_what_computes_on_a_card_is_said_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:00:00 UTC 2026\n")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(__version__="2.8.3"))
    version = metadata.version  # a stand-in of another test may have told Python of a distribution
    monkeypatch.setattr(metadata, "version", lambda name: version("no such distribution" if name == "flash-attn" else name))
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    found = software.loaded("cuda")
    assert {"flash_attn": "2.8.3", "cuda": "12.8", "cudnn": "91002", "driver": "570.124.06", "torch": torch.__version__}.items() <= found.items()
    assert "bitsandbytes" not in found  # installed or not, it did not run
    assert not {"cuda", "cudnn", "driver"} & set(software.loaded("cpu"))


@pytest.mark.parametrize(
    ("capability", "dtype", "autocast", "told"),
    [
        ((7, 5), torch.bfloat16, None, True),
        ((7, 0), torch.float32, torch.bfloat16, True),
        ((7, 5), torch.bfloat16, torch.float16, False),
        ((7, 5), torch.float16, None, False),
        ((8, 0), torch.bfloat16, None, False),
        (None, torch.bfloat16, None, False),
    ],
)
def test_bf16_on_a_card_without_it_is_a_finding(monkeypatch: pytest.MonkeyPatch, capability: Any, dtype: Any, autocast: Any, told: bool) -> None:
    if capability is not None:
        monkeypatch.setattr(emulated, "_card", lambda _: ("Tesla T4", capability))
    found = emulated.emulated(torch.nn.Linear(2, 2).to(dtype), autocast, 0)
    assert (found is not None) is told
    if found is not None:
        assert found.kind == "kernel-unsupported" and "Tesla T4 (compute capability 7." in found.title and ":" in found.where
