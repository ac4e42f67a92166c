"""What the first reader would wait for: loaded before the server answers; the Accuracy page's table a while later."""

from __future__ import annotations

import gc
import inspect
import json
import logging
import pkgutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from advisor import knowledge, views

Frozen = Mapping[str, Any]
SECONDS = 300.0  # for what takes a few on an idle machine
LATER = 20.0  # seconds: the first reader's first clicks come before a table that few open at once
EVERY = 30.0  # seconds: closed sessions' uploads (up to 64 MB each) go within this time, and a walk of what fifty hold (0.1 s) is rare
TABLES = ("numpy", "PIL.Image", "pandas", "pyarrow.compute")  # Streamlit sends charts, tables and the page's icon with them
_SEEN = threading.Event()  # a page has been sent
_ONE = threading.Lock()


def load() -> None:
    """Every piece of page, what Streamlit sends tables with, and the tables that a diagnosis reads: a link is opened and answered once."""
    for name in TABLES:
        import_module(name)
    caching = import_module("streamlit.runtime.caching.cache_data_api")
    logging.getLogger(caching.__name__).setLevel(logging.ERROR)  # it would warn that no server runs yet, which is meant
    for piece in pkgutil.iter_modules(views.__path__, f"{views.__name__}."):
        if not piece.name.endswith("__main__"):
            import_module(piece.name)
    from advisor.diagnosis import diagnose, diagnose_reading
    from advisor.reading import Reading
    from advisor.render import chat
    from advisor.share import link, open_link

    sample = min(knowledge.path("samples").glob("*.yaml"))
    report = diagnose(list(knowledge.load_yaml("samples", sample.name)["files"].items()))
    if report.run is not None:
        opened = open_link(link(report.run.stated, report.evidence).query)
        chat.report(diagnose_reading(Reading(opened.job, opened.evidence)))
    inspect.stack()  # Streamlit asks for it with its first message; inspect then looks at the file of every module, once
    settle()


def begin() -> None:
    """Start the thread that waits for the first page and then tidies up after all; it ends with the server."""
    threading.Thread(target=_behind, name="warming", daemon=True).start()


def settle() -> None:
    """Take what is loaded out of garbage collection: it stays until the server ends.

    Each full collection would walk all of the libraries and the knowledge again (0.16 s of a core, while nobody's page can run).
    """
    gc.collect()
    gc.freeze()


def seen() -> None:
    """A page has been sent."""
    _SEEN.set()


def scored() -> Frozen:
    """The estimates beside every published measurement; computed once, by whoever comes first, and read by all sessions."""
    with _ONE:
        return _scored()


@cache
def _scored() -> Frozen:
    """In a process of its own: in this one every page would wait for it, some seconds long, and all that it makes be looked through after each run."""
    command = [sys.executable, "-m", "advisor.cli", "accuracy", "--json"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=True)  # noqa: S603  our own command
        found: Frozen = frozen(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):  # a host without room for a second process
        from advisor.accuracy import score

        found = frozen(score(sorted(knowledge.path("measurements").glob("*.yaml"))))
    return found


def frozen(value: Any) -> Any:
    """The same with read-only mappings and tuples, all the way down."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value


def _behind() -> None:
    _SEEN.wait()  # until then nothing may compete with it
    settle()  # what the server itself has made since
    time.sleep(LATER)
    scored()
    tidy()


def tidy() -> None:
    """As long as the server runs."""
    while True:
        collect()


def collect() -> None:
    """Free what pages that were sent since the last time have left in cycles; it waits until one was sent.

    Streamlit would do so after every run (``runner.postScriptGC``), and Python by the number of objects, which says nothing of an upload's size.
    """
    _SEEN.wait()
    time.sleep(EVERY)
    _SEEN.clear()
    gc.collect()
