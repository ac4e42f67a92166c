"""One process for many probes of the same library versions: what scoring and the zoo ask, instead of a process a job."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from advisor.simulation import remembering
from advisor.simulation.launching import command, environment
from advisor.simulation.request import CannotProbe


class Session:
    """Processes by overlay of library versions, started when first asked and ended when the context closes."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._processes: dict[Path | None, subprocess.Popen[str]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for overlay in [*self._processes]:
            self._end(overlay)

    def ask(self, request: Mapping[str, Any], overlay: Path | None, *, timeout: float) -> dict[str, Any]:
        """The answer to a request, remembered or new.

        Raises:
            CannotProbe: the process ended, or wrote something else than an answer.
        """
        key = remembering.key(request, overlay)
        known = remembering.recall(key)
        if known is not None:
            return known
        process = self._process(overlay)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({**request, "timeout": timeout}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise CannotProbe(f"the probe's process ended with exit code {self._end(overlay)}; nothing was probed")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:  # a library wrote past Python to the same pipe: what comes after it cannot be told apart
            self._end(overlay)
            raise CannotProbe(f"the probe's process wrote no answer but {line.strip()[:80]!r}; nothing was probed") from None
        if "error" not in answer:
            remembering.keep(key, answer)
        return answer

    def _end(self, overlay: Path | None) -> int:
        """The exit code of a process that has ended by itself, else of one that is killed."""
        process = self._processes.pop(overlay)
        try:
            code = process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was still to be written to a process that is gone
                    pipe.close()
        return code

    def _process(self, overlay: Path | None) -> subprocess.Popen[str]:
        process = self._processes.get(overlay)
        if process is None:
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = subprocess.Popen([*command(), "--many"], text=True, env=environment(overlay), **pipes)  # noqa: S603  our own module
            self._processes[overlay] = process
            threading.Thread(target=self._listen, args=(process.stderr,), daemon=True).start()
        return process

    def _listen(self, stream: Any) -> None:
        try:
            for line in stream:
                if line.startswith("probe: "):
                    self._say(line[7:].strip())
        except ValueError:  # closed while it was read
            return
