"""Whether the kernel killed for want of host memory: the control group's own counter, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.launching.passing import Ended

ROOT = Path("/sys/fs/cgroup")


def out_of_memory_kills() -> int | None:
    """``oom_kill`` of this control group: kills by any out-of-memory killer (v2 ``memory.events``, v1 ``memory.oom_control``).

    ``None`` where it can not be read (no control group of its own, another system).
    """
    for place in _places():
        try:
            text = place.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        for entry in text.splitlines():
            name, _, value = entry.partition(" ")
            if name == "oom_kill" and value.strip().isdecimal():
                return int(value)
    return None


def _places() -> list[Path]:
    groups = {}
    try:
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            groups[controllers] = path.strip("/")
    except (OSError, ValueError):
        return []
    v1 = next((path for controllers, path in groups.items() if "memory" in controllers.split(",")), "")
    return [
        ROOT / groups.get("", "") / "memory.events",
        ROOT / "memory.events",
        ROOT / "memory" / v1 / "memory.oom_control",
        ROOT / "memory/memory.oom_control",
    ]


def told(pid: int, name: str, signal_number: int | None, kills: int | None) -> str | None:
    """What was seen of a killed program, in the kernel's and the launcher's own words, which the readers know."""
    if kills:
        return f"Memory cgroup out of memory: Killed process {pid} ({name[:40]})\n"
    return f"Signal 9 (SIGKILL) received by PID {pid}\n" if signal_number == 9 and kills is None else None


def may_be_memory(ended: Ended, kills: int | None) -> bool:
    """Whether a failed program may have died for want of memory: a marker in its output, a kill by the kernel, or one that nobody can explain.

    ``kills`` 0 (the counter was read and did not move) says that no kill was for memory: someone or something else sent the signal.
    """
    if ended.code == 0:
        return False
    marked = any(kept.failed_at is not None for kept in ended.streams.values())
    return marked or bool(kills) or (kills is None and (ended.signal == 9 or ended.code == 137))
