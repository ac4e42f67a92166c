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


def by_signal_9(ended: Ended) -> bool:
    """Whether signal 9 ended the program, or a process of it whose end it handed on: shells say 128 + 9, a Python launcher -9 of 256."""
    return ended.signal == 9 or ended.code in (128 + 9, 256 - 9)


def told(ended: Ended, name: str, kills: int | None) -> str | None:
    """What was seen of a killed program, in the kernel's and the launcher's own words, which the readers know."""
    if kills:
        return f"Memory cgroup out of memory: Killed process {ended.pid} ({name[:40]})\n"
    return f"Signal 9 (SIGKILL) received by PID {ended.pid}\n" if by_signal_9(ended) and kills is None else None


def note(ended: Ended, kills: int | None) -> str:
    """What to know of a program that signal 9 ended, where there is no diagnosis: it has no last word of its own."""
    who = "The program" if ended.signal == 9 else f"A process of the program (exit code {ended.code})"
    lines = [f"advisor: {who} was ended by signal 9 (SIGKILL). Most often that is the host's memory: the kernel's out-of-memory killer."]
    if kills == 0:
        lines.append(
            "Here this control group's counter of such kills (oom_kill) did not move meanwhile, which speaks against it: a batch system, the stop of a "
            "container, systemd-oomd or a person send the same signal."
        )
    lines.append(
        "To prove it: dmesg -T | grep -i -E 'killed process|oom-kill'; oom_kill in /sys/fs/cgroup/memory.events; of a container "
        "docker inspect -f '{{.State.OOMKilled}}' NAME; under Slurm sacct -j JOB -o State,MaxRSS. What they print is read by: advisor diagnose FILE"
    )
    return "\n".join(lines) + "\n"


def may_be_memory(ended: Ended, kills: int | None) -> bool:
    """Whether a failed program may have died for want of memory: a marker in its output, a kill by the kernel, or one that nobody can explain.

    ``kills`` 0 (the counter was read and did not move) says that no kill was for memory: someone or something else sent the signal.
    """
    if ended.code == 0:
        return False
    marked = any(kept.failed_at is not None for kept in ended.streams.values())
    return marked or bool(kills) or (kills is None and by_signal_9(ended))
