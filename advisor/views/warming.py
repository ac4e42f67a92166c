"""What the first diagnosis and the Accuracy page take seconds to build, built once while the first reader looks at the first page."""

from __future__ import annotations

import threading
import time
from functools import cache
from importlib import import_module
from typing import Any

from advisor import knowledge

LATER = 20.0  # seconds: the first reader's first diagnosis comes before a table that few open at once
_SEEN = threading.Event()  # a page has been sent: until then nothing may compete with it
_ONE = threading.Lock()


def begin() -> None:
    """Start the thread that waits for the first page; it ends with the server."""
    threading.Thread(target=_warm, name="warming", daemon=True).start()


def seen() -> None:
    """A page has been sent."""
    _SEEN.set()


def scored() -> dict[str, Any]:
    """The estimates beside every published measurement; computed once, by whoever comes first."""
    with _ONE:
        return _scored()


@cache
def _scored() -> dict[str, Any]:
    from advisor.accuracy import score

    return score(sorted(knowledge.path("measurements").glob("*.yaml")))


def _warm() -> None:
    _SEEN.wait()
    for name in ("pandas", "pyarrow.compute"):  # Streamlit sends charts and tables with them
        import_module(name)
    from advisor.diagnosis import diagnose

    sample = min(knowledge.path("samples").glob("*.yaml"))
    diagnose(list(knowledge.load_yaml("samples", sample.name)["files"].items()))
    time.sleep(LATER)
    scored()
