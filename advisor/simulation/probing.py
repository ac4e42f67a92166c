"""Starts the probe as a child process, with limits on time and memory, and reads its answer."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from advisor.ledger import Ledger
from advisor.run import Run
from advisor.simulation import outside
from advisor.simulation.launching import command, environment, overlay_of
from advisor.simulation.request import CannotProbe, request
from advisor.simulation.wire import from_dict

if TYPE_CHECKING:
    from advisor.simulation.sessions import Session

TIMEOUT_SECONDS = 600
WHOLE_PARAMETERS = 9_000_000_000  # models up to 8B run whole in seconds


@dataclass(frozen=True)
class Probed:
    """What the probe saw. ``reserved`` holds the allocator's replay: with and without expandable segments, bytes."""

    ledger: Ledger
    reserved: dict[str, int]
    events: int
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass
class Handle:
    """A running probe, for the page: :meth:`cancel` ends it."""

    process: subprocess.Popen[str] | None = None
    said: list[str] = field(default_factory=list)

    def cancel(self) -> None:
        """End the child process."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()


def probe(
    run: Run, *, timeout: float = TIMEOUT_SECONDS, say: Callable[[str], None] = lambda _: None, handle: Handle | None = None,
    timeline: Path | None = None, snapshot: Path | None = None, install_versions: bool = False, extrapolate: bool | None = None,
) -> Probed:  # fmt: skip
    """Run the job's real code without a device; ``timeline`` and ``snapshot`` are files to write.

    The run's own versions of the libraries are used where they are cached; ``install_versions`` lets pip fetch what is missing.

    ``extrapolate``: run a few layers and extend them, exactly or not at all (then there is no stream, so reserved memory is the estimate's);
    by default for models of more than :data:`WHOLE_PARAMETERS` whose layers are alike, unless a stream is asked for.

    Raises:
        CannotProbe: torch is missing, the job can not be run, it took too long, or it was cancelled.
    """
    handle = handle or Handle()
    few = not (timeline or snapshot) and (_large(run) if extrapolate is None else extrapolate)
    asked = request(run, timeline=timeline, snapshot=snapshot, extrapolate=few)
    overlay, why = overlay_of(run, say, install=install_versions)
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    handle.process = subprocess.Popen(command(), text=True, env=environment(overlay), **pipes)  # noqa: S603  our own module, nothing of the user's
    process = handle.process
    assert process.stdin and process.stdout and process.stderr
    listener = threading.Thread(target=_listen, args=(process.stderr, handle, say), daemon=True)
    listener.start()
    reader = _Reader(process.stdout)
    try:
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        process.wait(timeout=timeout)
        answer = reader.text()
    except subprocess.TimeoutExpired:
        raise CannotProbe(f"the probe took longer than {timeout:.0f} s and was ended; a smaller model or the estimate stands in") from None
    except BrokenPipeError:
        answer = ""
    finally:
        handle.cancel()
        process.wait()
        reader.text()
        listener.join(timeout=5)
        process.stderr.close()
    return _read(run, answer, process.returncode, handle.said, why)


def _large(run: Run) -> bool:
    return run.architecture is not None and run.architecture.parameters > WHOLE_PARAMETERS


def asked_of(session: Session, run: Run, *, timeout: float, say: Callable[[str], None], install_versions: bool = False, whole: bool = True) -> Probed:
    """The same through a session: one process for many jobs, and answers that are kept.

    ``whole``: with reserved memory; otherwise a few layers are extended where that is exact.

    Raises:
        CannotProbe: as :func:`probe`.
    """
    overlay, why = overlay_of(run, say, install=install_versions)
    return understood(run, session.ask(request(run, extrapolate=not whole or _large(run)), overlay, timeout=timeout), why)


class _Reader(threading.Thread):
    """Reads a pipe to its end while the process runs, so that it can not fill up."""

    def __init__(self, stream: Any) -> None:
        super().__init__(daemon=True)
        self._stream, self._parts = stream, [""]
        self.start()

    def run(self) -> None:
        self._parts[0] = self._stream.read()

    def text(self) -> str:
        self.join()
        if not self._stream.closed:
            self._stream.close()
        return self._parts[0]


def _listen(stream: Any, handle: Handle, say: Callable[[str], None]) -> None:
    for line in stream:
        if line.startswith("probe: "):
            handle.said.append(line[7:].strip())
            say(handle.said[-1])


def _read(run: Run, answer: str, returncode: int, said: list[str], why: str | None) -> Probed:
    try:
        data = json.loads(answer)
    except ValueError:
        last = f" while {said[-1]}" if said else ""
        raise CannotProbe(f"the probe's process ended with exit code {returncode}{last}; nothing was probed") from None
    return understood(run, data, why)


def understood(run: Run, data: dict[str, Any], why: str | None) -> Probed:
    """The child's answer with what it can not see: cache, context, how sure the figures are.

    Raises:
        CannotProbe: the answer is an error.
    """
    if "error" in data:
        raise CannotProbe(data["error"])
    notes = (*data["notes"], *((why,) if why and data["notes"] else ()), *data.get("remarks", ()))
    ledger = replace(from_dict(data["ledger"]), notes=notes)
    whole = outside.complete(run, ledger, data["reserved"], same_versions=not data["notes"])
    return Probed(whole, data["reserved"], data["events"], data["seconds"], notes)
