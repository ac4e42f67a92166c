"""The card while the run goes on, from NVML where its Python binding is installed: clocks, what throttles them, PCIe throughput.

Optional: without ``pynvml`` (package ``nvidia-ml-py``), a driver or a GPU the log says once why nothing is sampled.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

# nvml.h as nvidia-ml-py 13.615.71 carries it, nvmlClocksEventReason*; idle and application clocks are no fault
_THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "thermal, by software", 0x40: "thermal, by hardware", 0x80: "power brake",
}  # fmt: skip


class Card:
    """One card's counters. ``absent``: why there are none."""

    def __init__(self, uuid: str | None) -> None:
        self.absent: str | None = None
        self._handle: Any = None
        try:
            self._nvml: Any = import_module("pynvml")
        except ImportError:
            self.absent = "pynvml is not installed (pip install nvidia-ml-py)"
            return
        if uuid is None:
            self.absent = "this torch does not say which card it is"
            return
        try:
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            self.absent = f"NVML: {error}"

    def sample(self) -> dict[str, Any]:
        """Clocks in MHz, PCIe throughput in bytes a second over NVML's last 20 ms, reasons that hold the clocks down; what a card lacks is left out."""
        if self._handle is None:
            return {}
        n, card = self._nvml, self._handle
        found: dict[str, Any] = {}
        for name, ask in (
            ("clock_mhz", lambda: n.nvmlDeviceGetClockInfo(card, n.NVML_CLOCK_SM)),
            ("memory_clock_mhz", lambda: n.nvmlDeviceGetClockInfo(card, n.NVML_CLOCK_MEM)),
            ("pcie_to_card_bytes", lambda: n.nvmlDeviceGetPcieThroughput(card, n.NVML_PCIE_UTIL_RX_BYTES) * 1024),
            ("pcie_from_card_bytes", lambda: n.nvmlDeviceGetPcieThroughput(card, n.NVML_PCIE_UTIL_TX_BYTES) * 1024),
            ("throttled_by", lambda: throttles(int(n.nvmlDeviceGetCurrentClocksThrottleReasons(card)))),
        ):
            try:
                found[name] = ask()
            except (n.NVMLError, AttributeError):  # not supported by this card, or by this release of the binding
                continue
        return found


def of_model(model: torch.nn.Module) -> Card | None:
    """The card of a model's first parameter; ``None``: the model is on no CUDA device, so there is nothing to sample."""
    device = next((p.device for p in model.parameters()), None)
    if device is None or device.type != "cuda" or torch.version.hip is not None:
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # torch 2.4 and later, without the prefix
    return Card(None if uuid is None else f"GPU-{uuid}")


def throttles(bits: int) -> list[str]:
    """Names of the reasons that are set."""
    return [name for bit, name in _THROTTLES.items() if bits & bit]
