"""The card's counters through NVML: read where there is one, left out where the card lacks one, and absence is said."""

import sys
import types
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch
from advisor.measurement.watching import card  # noqa: E402


class NVMLError(Exception):
    pass


def refuse(*_: object) -> None:
    raise NVMLError("Not Supported")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    made = types.SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_PCIE_UTIL_TX_BYTES=0, NVML_PCIE_UTIL_RX_BYTES=1, nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid, nvmlDeviceGetClockInfo=lambda handle, kind: 1000 * kind,
        nvmlDeviceGetPcieThroughput=lambda handle, kind: 5 + kind, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x1 | 0x4 | 0x40,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", made)
    yield made


def test_what_the_card_says(nvml: types.SimpleNamespace) -> None:
    assert card.Card("GPU-1").sample() == {
        "clock_mhz": 1000, "memory_clock_mhz": 2000, "pcie_to_card_bytes": 6 * 1024, "pcie_from_card_bytes": 5 * 1024,
        "throttled_by": ["power cap", "thermal, by hardware"],
    }  # fmt: skip
    nvml.nvmlDeviceGetPcieThroughput = refuse
    assert set(card.Card("GPU-1").sample()) == {"clock_mhz", "memory_clock_mhz", "throttled_by"}
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons  # a binding that no longer has the older name ends no training
    assert set(card.Card("GPU-1").sample()) == {"clock_mhz", "memory_clock_mhz"}


def test_absence_is_said(nvml: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.nvmlInit = refuse
    assert card.Card("GPU-1").absent == "NVML: Not Supported" and card.Card("GPU-1").sample() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "not installed" in str(card.Card("GPU-1").absent)
    assert card.of_model(torch.nn.Linear(2, 2)) is None
