"""``nvidia-smi``: the table (whole, or single rows of it), its process table, MIG devices, CSV queries and ``-L``; ``rocm-smi``, ``npu-smi``, ``gpustat``.

Units: nvidia-smi prints MiB. The process table shows nothing inside containers and for other users: memory that is used without a process
there belongs to someone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from advisor.evidence import Device, Process
from advisor.reading.lines import Excerpt, LogLine
from advisor.reading.pattern import pattern as lazily
from advisor.units import MIB

MAX_DEVICES, MAX_PROCESSES = 512, 1024

_NAME = lazily(r"^\s*\|\s{1,4}(\d{1,4})\s{1,4}([A-Za-z][\w .()/-]{2,60}?)(?:\s{2,}|\s\.{0,3}\s*)(?:On|Off|N/A|WDDM|TCC|\|)")
_ROW = lazily(r"^\s*\|(?:[^|]*\|)?\s*(\d{1,8})\s?MiB\s*/\s*(\d{1,8})\s?MiB\s*\|")
_SINGLE = lazily(r"^\s*\|\s{1,4}(\d{1,4})\s{1,4}([A-Za-z][\w .()/-]{2,60}?)\s{0,40}(?:(?:On|Off)\s{0,40})?\|\s*(\d{1,8})\s?MiB\s*/\s*(\d{1,8})\s?MiB\s*\|")
_PROCESS = lazily(r"^\s*\|\s*(\d{1,4})\s+(?:(?:N/A|\d{1,4})\s+(?:N/A|\d{1,4})\s+)?(\d{1,10})\s+(C\+G|C|G|M\+C)\s+(.{1,200}?)\s+(\d{1,8}\s?MiB|N/A)\s*\|")
_NONE = lazily(r"No running processes found", re.IGNORECASE)
_MIG = lazily(r"^\s*\|\s*(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*\|\s*(\d{1,8})\s?MiB\s*/\s*(\d{1,8})\s?MiB")
_LISTED = lazily(r"^\s*GPU (\d{1,4}): ([\w ./()-]{2,80}?)\s*\(UUID")
_MIG_LISTED = lazily(r"^\s*MIG ([\w.+-]{2,20})\s+Device\s+(\d{1,4}):")
_ROCM = lazily(r"GPU\[(\d{1,4})\]\s*:\s*VRAM Total (Used )?Memory \(B\):\s*(\d{1,15})", re.IGNORECASE)
_GPUSTAT = lazily(r"^\s*\[(\d{1,4})\] ([\w ./()-]{2,60}?)\s*\|.{0,80}\|\s*(\d{1,8})\s*/\s*(\d{1,8})\s*MB")
_NPU = lazily(r"^\s*\|\s*(\d{1,4})\s+([0-9A-Z]{4,12})\s*\|\s*(?:OK|Warning|Alarm)", re.IGNORECASE)
_NPU_ROW = lazily(r"^\s*\|\s*(\d{1,4})\s*(?:\d{1,4}\s*)?\|\s*[0-9A-F:.]{7,20}\s*\|.*?(\d{1,8})\s*/\s*(\d{1,8})\s*\|\s*$", re.IGNORECASE)
_QUERY = lazily(
    r"^\s*(?:index|name|uuid|pid|gpu_uuid|gpu_name|timestamp|memory\.\w+|gpu_bus_id|process_name|used_gpu_memory|utilization\.\w+|"
    r"pci\.bus_id)\b.*,",
    re.IGNORECASE,
)
_BARE = lazily(r"^\s*(?:(\d{1,4})\s*,\s*)?(?:([A-Za-z][\w ./()-]{2,60}?)\s*,\s*)?(\d{1,8}) MiB\s*,\s*(\d{1,8}) MiB\s*$")
_PLAIN = lazily(r"^\s*((?:NVIDIA|AMD|GeForce|Tesla|Quadro|RTX|GTX)[\w .()/-]{2,60}?),\s*(\d{3,8})\s?MiB\b(?:.{0,20}?used (\d{1,8})\s?MiB)?")


def devices_of(text: Excerpt) -> list[Device]:
    """The cards that a text shows, by their index where it is printed; the last state where a card is printed repeatedly."""
    found: list[Device] = []
    name: tuple[int | None, str] | None = None
    columns: list[str] | None = None
    loose: list[tuple[int, Process]] = []
    for line in text.lines:
        content = line.text
        if "MiB" not in content and "|" not in content and "," not in content and "GPU" not in content:
            columns = None
            continue
        where = text.where(line)
        if columns is not None:
            row = _csv(content, columns, where)
            if row is not None:
                found.append(row)
                continue
            columns = None
        if _QUERY.match(content) and re.search(r"memory|name", content):
            columns = [c.strip().lower() for c in content.split(",")]
            continue
        if (m := _SINGLE.match(content)) is not None:
            found.append(Device(where, int(m[1]), _clean(m[2]), int(m[3]) * MIB, int(m[4]) * MIB))
        elif (m := _MIG.match(content)) is not None:
            found.append(Device(where, int(m[1]), f"MIG device {m[4]}", int(m[5]) * MIB, int(m[6]) * MIB, mig=True))
        elif (m := _PROCESS.match(content)) is not None:
            size = None if m[5] == "N/A" else int(re.sub(r"\D", "", m[5])) * MIB
            loose.append((int(m[1]), Process(int(m[2]), size, m[4].strip()[:80])))
        elif (m := _NAME.match(content)) is not None:
            name = (int(m[1]), _clean(m[2]))
        elif (m := _ROW.match(content)) is not None:
            index, card = name if name is not None else (None, None)
            found.append(Device(where, index, card, int(m[1]) * MIB, int(m[2]) * MIB))
            name = None
        else:
            found.extend(_other(content, where))
        if len(found) > 8 * MAX_DEVICES:
            break
    return _with_processes(_last(found), loose[:MAX_PROCESSES], text)


def _other(content: str, where: str) -> list[Device]:
    if (m := _LISTED.match(content)) is not None:
        return [Device(where, int(m[1]), m[2])]
    if (m := _MIG_LISTED.match(content)) is not None:
        return [Device(where, int(m[2]), f"MIG {m[1]}", mig=True)]
    if (m := _GPUSTAT.match(content)) is not None:
        return [Device(where, int(m[1]), m[2], int(m[3]) * MIB, int(m[4]) * MIB)]
    if (m := _ROCM.search(content)) is not None:
        size = int(m[3])
        return [Device(where, int(m[1]), None, size if m[2] else None, None if m[2] else size)]
    if (m := _NPU.match(content)) is not None:
        return [Device(where, int(m[1]), m[2])]
    if (m := _NPU_ROW.match(content)) is not None:
        return [Device(where, int(m[1]), None, int(m[2]) * MIB, int(m[3]) * MIB)]
    if (m := _BARE.match(content)) is not None:
        first, second = int(m[3]) * MIB, int(m[4]) * MIB
        return [Device(where, int(m[1]) if m[1] else None, m[2], min(first, second), max(first, second))]
    if (m := _PLAIN.match(content)) is not None:
        return [Device(where, None, _clean(m[1]), int(m[3]) * MIB if m[3] else None, int(m[2]) * MIB)]
    return []


def _clean(name: str) -> str:
    return re.sub(r"\s+(?:On|Off)$", "", name.strip()).strip()


def _csv(content: str, columns: Sequence[str], where: str) -> Device | None:
    cells = [c.strip() for c in content.split(",")]
    if len(cells) != len(columns) or not any(c[:1].isdigit() for c in cells):
        return None
    row = dict(zip(columns, cells, strict=True))

    def amount(word: str) -> int | None:
        for key, cell in row.items():
            if key.startswith(word) and (m := re.match(r"(\d{1,9})(?:\.\d+)?\s*(?:MiB)?$", cell)) is not None:
                return int(m[1]) * MIB
        return None

    used, total = amount("memory.used"), amount("memory.total")
    index = next((int(row[k]) for k in row if k in ("index", "gpu") and row[k].isdigit()), None)
    card = next((row[k] for k in row if k in ("name", "gpu_name")), None)
    pid = next((int(row[k]) for k in row if k == "pid" and row[k].isdigit()), None)
    if pid is not None:
        held = amount("used_memory") or amount("used_gpu_memory")
        return Device(where, index, card, processes=(Process(pid, held, row.get("process_name")),))
    return Device(where, index, card, used, total) if used is not None or total is not None or card else None


def _last(found: list[Device]) -> list[Device]:
    """One entry a card: later figures replace earlier ones, what only one of them prints is kept."""
    out: dict[tuple[object, ...], Device] = {}
    for order, device in enumerate(found):
        key: tuple[object, ...] = ("mig", device.index, device.name) if device.mig else (device.index,) if device.index is not None else ("no index", order)
        earlier = out.get(key)
        if earlier is not None:
            device = replace(
                device,
                name=device.name or earlier.name,
                used_bytes=earlier.used_bytes if device.used_bytes is None else device.used_bytes,
                total_bytes=earlier.total_bytes if device.total_bytes is None else device.total_bytes,
                processes=(*earlier.processes, *device.processes)[-MAX_PROCESSES:],
            )
        out[key] = device
        if len(out) >= MAX_DEVICES:
            break
    return list(out.values())


def _with_processes(devices: list[Device], loose: list[tuple[int, Process]], text: Excerpt) -> list[Device]:
    by_index: dict[int, list[Process]] = {}
    for index, process in loose:
        by_index.setdefault(index, []).append(process)
    out: list[Device] = []
    for device in devices:
        mine = tuple(by_index.pop(device.index, [])) if device.index is not None and not device.mig else ()
        out.append(replace(device, processes=device.processes + mine))
    for index, processes in by_index.items():  # a process table without the cards above it
        held = [p.used_bytes for p in processes if p.used_bytes is not None]
        out.append(Device(_process_where(text.lines, text, index), index, None, sum(held) if held else None, None, tuple(processes)))
    return out


def _process_where(lines: Sequence[LogLine], text: Excerpt, index: int) -> str:
    line = next((line for line in lines if (m := _PROCESS.match(line.text)) is not None and int(m[1]) == index), None)
    return text.where(line) if line is not None else text.name
