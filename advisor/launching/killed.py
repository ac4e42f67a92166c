"""Whether the kernel killed for want of host memory: the control group's own counter, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.launching.passing import Ended

PLACES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def out_of_memory_kills() -> int | None:
    """``oom_kill`` of this control group (v2 ``memory.events``, v1 ``memory.oom_control``); ``None`` where it can not be read."""
    for place in PLACES:
        try:
            text = Path(place).read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        for entry in text.splitlines():
            name, _, value = entry.partition(" ")
            if name == "oom_kill" and value.strip().isdecimal():
                return int(value)
    return None


def told(pid: int, name: str, signal_number: int | None, kills: int | None) -> str | None:
    """What was seen of a killed program, in the kernel's and the launcher's own words, which the readers know."""
    if kills:
        return f"Memory cgroup out of memory: Killed process {pid} ({name[:40]})\n"
    return f"Signal 9 (SIGKILL) received by PID {pid}\n" if signal_number == 9 else None


def may_be_memory(ended: Ended, kills: int | None) -> bool:
    """Whether a failed program may have died for want of memory: a marker in its output, or a kill that nobody announced."""
    if ended.code == 0:
        return False
    marked = any(kept.failed_at is not None for kept in ended.streams.values())
    return marked or bool(kills) or ended.signal == 9 or ended.code == 137
