"""What ``advisor collect`` prints: a header line ``advisor collect 1`` and ``key: value`` lines.

Keys: ``version.<package>``, ``gpu.<index>`` (``name, total bytes[, used bytes]``), ``gpus``, ``env.<NAME>`` (allocator, NCCL and visibility settings only),
``host_memory_bytes``, ``cpu_count``, ``platform``, ``python``, ``driver``, ``cuda``. Unknown keys are kept as not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor import cards
from advisor.evidence import Device, Fact, NotUnderstood
from advisor.reading.lines import Excerpt
from advisor.reading.merge import PRINTED, Ranked
from advisor.reading.pattern import pattern as lazily
from advisor.reading.printed import allocator
from advisor.units import GIB

HEADER = "advisor collect 1"
_PAIR = lazily(r"^([a-z_]{2,30}(?:\.[\w-]{1,60})?):\s*(.{0,300})$", re.IGNORECASE)
_GPU = lazily(r"^(.{1,100}?),\s*(\d{6,15})(?:,\s*(\d{1,15}))?$")
_PLAIN = ("platform", "cpu_count", "driver", "rank", "torch_cuda", "visible")


def collected(text: Excerpt) -> Iterator[Ranked | Device | NotUnderstood]:
    """Facts, devices and what was not understood; nothing where the header is not there."""
    start = next((i for i, line in enumerate(text.lines) if line.text.strip().lower() == HEADER), None)
    if start is None:
        return
    for line in text.lines[start + 1 :]:
        match = _PAIR.match(line.text.strip())
        if match is None:
            continue
        key, value, where = match[1].lower(), match[2].strip(), text.where(line)
        base, _, rest = key.partition(".")
        if base in ("version", "versions") and rest:
            yield _ranked(f"framework.versions.{rest.replace('-', '_')}", value[:100], where, line.text)
        elif base in ("python", "cuda"):
            yield _ranked(f"framework.versions.{base}", value[:100], where, line.text)
        elif base == "gpu" and (m := _GPU.match(value)) is not None:
            yield Device(where, int(rest) if rest.isdigit() else None, m[1], int(m[3]) if m[3] else None, int(m[2]))
            if (card := cards.find(m[1], int(m[2]))) is not None:
                yield _ranked("hardware.gpu", card.id, where, line.text)
        elif base == "gpus" and value.isdigit():
            yield _ranked("hardware.gpus_per_node", int(value), where, line.text)
        elif base == "host_memory_bytes" and value.isdigit():
            yield _ranked("hardware.host_memory_gib", round(int(value) / GIB, 2), where, line.text)
        elif base == "env":
            if rest.endswith("alloc_conf"):
                for name, setting in allocator(value).items():
                    yield _ranked(f"framework.allocator.{name}", setting, where, line.text)
        elif base not in _PLAIN:
            yield NotUnderstood(where, line.text[:200], "advisor collect prints no such key in version 1")


def _ranked(field: str, value: object, where: str, text: str) -> Ranked:
    return Ranked(Fact(field, value, "read", where, text=text.strip()[:200]), PRINTED)
