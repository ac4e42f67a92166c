"""Memory snapshots of torch (``torch.cuda.memory._snapshot()``, ``memory_snapshot()``, traces): untrusted pickles, read as a small summary."""

from __future__ import annotations

from advisor.reading.pattern import pattern as lazily

_JSON = lazily(r'^\s*[\[{]\s*(?:\{\s*)?"(?:segments|device_traces|allocator_settings|device|address|total_size|external_annotations|action)"')


def is_pickle(name: str, head: bytes) -> bool:
    """Whether a file is a pickle: by its first bytes (protocol 2 and later), or by its name (protocols 0 and 1 look like text)."""
    if len(head) >= 3 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return True
    named = name.lower().endswith((".pickle", ".pkl"))
    return named and head[:1] in (b"(", b"c", b"}", b"]", b"i", b"P", b"V", b"S") and not head.lstrip().startswith((b"{", b"[{"))


def is_json(text: str) -> bool:
    """Whether a JSON text is a snapshot, or the list of segments, that someone wrote with ``json.dump``."""
    return _JSON.match(text[:400]) is not None and ('"total_size"' in text or '"device_traces"' in text) and ('"blocks"' in text or '"action"' in text)
