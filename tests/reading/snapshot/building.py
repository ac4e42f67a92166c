"""Snapshots built by hand in the structure that torch writes (``torch/csrc/cuda/Module.cpp``), as a little allocator that records itself.

``version`` "2.0": blocks without address, frames in ``history``; "2.1": address and frames in blocks; "now": time, pools, settings, annotations too.
"""

from __future__ import annotations

import pickle
from typing import Any

MIB = 1024**2
GIB = 1024**3
ENV = "/home/anna/miniconda3/envs/train/lib/python3.11/site-packages/"


def frame(path: str, name: str, line: int = 10) -> dict[str, Any]:
    return {"filename": path if path.startswith(("/", "??")) else ENV + path, "line": line, "name": name}


NATIVE = {"filename": "??", "line": 0, "name": "c10::cuda::CUDACachingAllocator::Native::malloc"}
MAIN = frame("/home/anna/project/train.py", "main", 88)
LINEAR = frame("torch/nn/modules/linear.py", "forward", 125)
LLAMA = [NATIVE, LINEAR, frame("transformers/models/llama/modeling_llama.py", "forward", 160), frame("transformers/trainer.py", "training_step", 3700), MAIN]
ADAM = [frame("torch/_foreach.py", "zeros_like", 3), frame("torch/optim/adamw.py", "_init_group", 130), frame("transformers/trainer.py", "train", 2500), MAIN]
LOSS = [frame("torch/nn/functional.py", "cross_entropy", 3494), frame("transformers/loss/loss_utils.py", "fixed_cross_entropy", 40), MAIN]
LOAD = [frame("torch/nn/modules/module.py", "convert", 1340), frame("transformers/modeling_utils.py", "from_pretrained", 4000), MAIN]
HOOK = [frame("torch/_tensor.py", "clone", 2), frame("/home/anna/project/callbacks.py", "on_step_end", 17), MAIN]


class Recorded:
    """Segments of one device with the events that made them. Addresses are given out in order; a segment is one block after the other."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.events: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []
        self._next = 0x7F0000000000
        self._time = 1_700_000_000_000_000

    def event(self, action: str, size: int, frames: list[Any], *, address: int = 0, **more: Any) -> None:
        self._time += 7
        where = {"device_free": more.pop("device_free")} if action == "oom" else {"addr": address}
        self.events.append({"action": action, **where, "size": size, "stream": 0, "time_us": self._time, "frames": frames, **more})

    def segment(self, size: int, *, pool: tuple[int, int] = (0, 0), expandable: bool = False) -> dict[str, Any]:
        address, self._next = self._next, self._next + size
        self.event("segment_map" if expandable else "segment_alloc", size, [], address=address)
        made = {
            "device": self.device, "address": address, "total_size": size, "stream": 0, "segment_type": "large" if size > 2 * MIB else "small",
            "segment_pool_id": pool, "is_expandable": expandable, "frames": [], "blocks": [], "_used": 0,
        }  # fmt: skip
        self.segments.append(made)
        return made

    def alloc(self, segment: dict[str, Any], size: int, frames: list[Any], *, traced: bool = True) -> dict[str, Any]:
        whole = -(-size // 512) * 512
        address = segment["address"] + segment["_used"]
        segment["_used"] += whole
        assert segment["_used"] <= segment["total_size"], "the segment is full"
        block = {"address": address, "size": whole, "requested_size": size, "state": "active_allocated", "frames": frames}
        segment["blocks"].append(block)
        if traced:
            self.event("alloc", size, frames, address=address)
        return block

    def free(self, block: dict[str, Any], *, pending: bool = False) -> None:
        self.event("free_requested", block["requested_size"], [], address=block["address"])
        block["state"] = "active_pending_free" if pending else "inactive"
        if not pending:
            self.event("free_completed", block["requested_size"], [], address=block["address"])

    def oom(self, size: int, device_free: int, frames: list[Any]) -> None:
        self.event("oom", size, frames, device_free=device_free)

    def finished(self, version: str = "now") -> list[dict[str, Any]]:
        out = []
        for made in self.segments:
            segment = {key: value for key, value in made.items() if key != "_used"}
            blocks = [dict(b) for b in made["blocks"]]
            rest = made["total_size"] - made["_used"]
            if rest:
                blocks.append({"address": made["address"] + made["_used"], "size": rest, "requested_size": 0, "state": "inactive", "frames": []})
            for key, states in (("allocated_size", ("active_allocated",)), ("active_size", ("active_allocated", "active_pending_free"))):
                segment[key] = sum(b["size"] for b in blocks if b["state"] in states)
            segment["requested_size"] = sum(b["requested_size"] for b in blocks if b["state"] == "active_allocated")
            if version == "2.0":
                for key in ("segment_pool_id", "is_expandable", "frames"):
                    segment.pop(key)
                blocks = [_old(b) for b in blocks]
            segment["blocks"] = blocks
            out.append(segment)
        return out


def _old(block: dict[str, Any]) -> dict[str, Any]:
    out = {"size": block["size"], "requested_size": block["requested_size"], "state": block["state"]}
    if block["state"] != "inactive":
        out["history"] = [{"addr": block["address"], "real_size": block["requested_size"], "frames": block["frames"]}]
    return out


def snapshot(*devices: Recorded, version: str = "now", settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The dictionary that ``torch.cuda.memory._snapshot()`` returns."""
    data: dict[str, Any] = {"segments": [s for d in devices for s in d.finished(version)], "device_traces": [d.events for d in devices]}
    if version in ("2.0", "2.1"):
        for event in (e for trace in data["device_traces"] for e in trace):
            event.pop("time_us", None)
    else:
        data["allocator_settings"] = {
            "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0, "expandable_segments": False,
            "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {"1": 0, "2": 0}, **(settings or {}),
        }  # fmt: skip
        data["external_annotations"] = []
    return data


def training_step() -> Recorded:
    """A step that fails: weights, moments, activations of two layers, a loss; what is freed leaves holes; then a request that fails."""
    run = Recorded()
    weights = run.segment(2 * GIB)
    for _ in range(4):
        run.alloc(weights, 400 * MIB, LOAD)
    state = run.segment(1 * GIB)
    for _ in range(2):
        run.alloc(state, 300 * MIB, ADAM)
    step = run.segment(3 * GIB)
    layers = [run.alloc(step, 500 * MIB, LLAMA) for _ in range(3)]
    loss = run.alloc(step, 1 * GIB, LOSS)
    run.free(layers[1])
    run.free(loss)
    run.oom(1100 * MIB, 300 * MIB, LOSS)
    return run


def dumped(data: Any, protocol: int = 4) -> bytes:
    return pickle.dumps(data, protocol=protocol)
